"""The model: loading, adapters, log-probabilities, weights as snapshots.

No losses, gradients or optimizers: those are in `training/`. Start at `loading.py`.
"""
