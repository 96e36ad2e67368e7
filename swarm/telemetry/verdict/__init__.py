"""Does the swarm help? Measured by a control or by the nodes' own estimates, and said in the same words everywhere.

`verdict.py` makes the verdict that the terminal, the report and the page show.
"""
