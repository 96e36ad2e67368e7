"""Several processes of one node under torchrun: rank 0 is the node, the others do their share.

Start at `led.py`. A peer's is `nodes/roles/coordinator.py`.
"""
