"""What is wrong with a node, in words, each with what to do: for its log, the live view, the report and the page.

`checks.py` has all alerts; they look at the curves that a node's history keeps.
"""
