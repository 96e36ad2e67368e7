"""How much memory a node needs, computed from its configuration alone: without weights, before anything starts.

Not here: finding out by running out (`swarm/policy/out_of_memory.py`).
"""
