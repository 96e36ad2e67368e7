"""What a process can be in a swarm: bootstrap node, peer, learner, worker, hybrid; and what roles share.

`join.py` is `swarm join`, `learner.py` is `swarm learn`, `worker.py` is `swarm work`; `shell.py` is around all of them.
"""
