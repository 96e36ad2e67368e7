"""An engine in a process of its own, so that generation goes on while the policy trains.

`engine.py` is this side, `worker.py` the other; weights go over shared memory (`handover.py`).
"""
