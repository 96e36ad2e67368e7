"""The model's layers as training runs them: compiled, or with their activations computed again for the gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from swarm.errors import PolicyError

Forward = Callable[..., object]


class TrainingLayers:
    """Other forward functions for a model's repeated layers, in effect where gradients are wanted.

    The model stays in evaluation mode: what transformers does by itself needs training mode, which brings dropout.
    """

    def __init__(self, model: PreTrainedModel, compiled: bool, checkpointed: bool) -> None:
        """Raises `PolicyError` when either is wanted of a model whose layers cannot be told."""
        self._forwards: list[tuple[nn.Module, Forward]] = []
        if not (compiled or checkpointed):
            return
        layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        if not layers:
            raise PolicyError(
                f"the layers of {type(model).__name__} cannot be told; set update.compile and "
                "update.gradient_checkpointing to false"
            )
        for layer in layers:
            plain: Forward = layer.forward
            training = torch.compile(plain, dynamic=True) if compiled else plain
            self._forwards.append((layer, _with_gradient(_recomputed(training) if checkpointed else training, plain)))

    @contextmanager
    def active(self) -> Iterator[None]:
        """From the first forward pass of an update to its last backward pass."""
        for layer, forward in self._forwards:
            layer.forward = forward  # found before the class's own
        try:
            yield
        finally:
            for layer, _ in self._forwards:
                del layer.forward


def _recomputed(forward: Forward) -> Forward:
    def run(*args: object, **kwargs: object) -> object:
        return checkpoint(lambda *inputs: forward(*inputs, **kwargs), *args, use_reentrant=False)

    return run


def _with_gradient(training: Forward, plain: Forward) -> Forward:
    """`plain` where no gradient is wanted, such as in a thread that generates meanwhile."""

    def run(*args: object, **kwargs: object) -> object:
        return (training if torch.is_grad_enabled() else plain)(*args, **kwargs)

    return run
