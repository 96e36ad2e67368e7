"""The model: loading, adapters, log-probabilities, snapshots of weights.

Losses, gradients and optimizers are in `training/`. Start at `loading.py`.
"""

from swarm import torchao

torchao.hide()  # before transformers is imported, which would import it
