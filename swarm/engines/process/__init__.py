"""An engine in a separate process, so that generation continues while the policy trains.

`engine.py` is the node's side, `worker.py` the other; weights are passed in shared memory.
"""
