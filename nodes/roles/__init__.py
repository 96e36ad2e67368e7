"""The roles of a process in a swarm: bootstrap node, peer, learner, worker, hybrid; and their shared code.

`join.py` is `swarm join`, `learner.py` is `swarm learn`, `worker.py` is `swarm work`; `shell.py` surrounds all of them.
"""
