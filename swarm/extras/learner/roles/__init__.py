"""The nodes: `learner.py` is `swarm learn`, `worker.py` `swarm work`, `adoption.py` what `swarm join --follow` adds.

`ranks.py` is a learner's policy on several processes.
"""
