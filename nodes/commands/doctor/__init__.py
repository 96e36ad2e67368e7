"""`swarm doctor`: finds problems of this machine and its network, and suggests fixes.

`probes.py` collects facts, `machine.py` and `outside.py` judge them, `command.py` orders and prints the findings.
"""
