"""The model: loading, adapters, log-probabilities.

Losses, gradients and optimizers are in `training/`. Start at `loading.py`.
"""
