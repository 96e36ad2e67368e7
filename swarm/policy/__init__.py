"""The model: loading, adapters, log-probabilities, snapshots of weights.

Losses, gradients and optimizers are in `training/`. Start at `loading.py`.
"""
