"""The roles of a process in a swarm: `peer.py` is `swarm join`, `learner.py` `swarm learn`, `worker.py` `swarm work`.

`bootstrap.py` is `swarm bootstrap`; `runtime.py` holds what surrounds a role, `ranks.py` a policy on several processes.
"""
