"""Updates of a policy: batches, objectives, figures, checkpoints.

Losses and advantages are in `algorithms/`, the forward pass in `policy/`. Start at `updater.py`.
"""
