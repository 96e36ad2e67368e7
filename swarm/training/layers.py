"""The model's layers in training: compiled, or with activation checkpointing."""

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
    """Replaces the forward functions of a model's repeated layers while gradients are computed.

    The model stays in evaluation mode: transformers' own checkpointing needs training mode, which enables dropout.
    """

    def __init__(self, model: PreTrainedModel, compiled: bool, checkpointed: bool | None) -> None:
        """`checkpointed` None: with CUDA, where possible.

        Raises `PolicyError` when either is requested and the model's layers cannot be identified.
        """
        self._forwards: list[tuple[nn.Module, Forward]] = []
        layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        self.checkpointed = checkpointed = is_checkpointed(checkpointed, model.device.type, bool(layers))
        if not (compiled or checkpointed):
            return
        if not layers:
            raise PolicyError(
                f"the layers of {type(model).__name__} cannot be identified; set update.compile and "
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
            layer.forward = forward  # an instance attribute takes precedence over the class's
        try:
            yield
        finally:
            for layer, _ in self._forwards:
                del layer.forward


def is_checkpointed(chosen: bool | None, device: str, possible: bool = True) -> bool:
    """Whether layers are checkpointed on this type of device: as chosen, by default with CUDA where possible."""
    return possible and device == "cuda" if chosen is None else chosen


def _recomputed(forward: Forward) -> Forward:
    def run(*args: object, **kwargs: object) -> object:
        return checkpoint(lambda *inputs: forward(*inputs, **kwargs), *args, use_reentrant=False)

    return run


def _with_gradient(training: Forward, plain: Forward) -> Forward:
    """`plain` when gradients are disabled, for example in the generating thread."""

    def run(*args: object, **kwargs: object) -> object:
        return (training if torch.is_grad_enabled() else plain)(*args, **kwargs)

    return run
