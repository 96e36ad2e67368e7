"""Where questions come from, and how answers are graded.

`config.py`, `specs.py` and `mixture.py` describe the tasks of a run; nothing here knows a policy or the network.
"""
