"""The model's layers in training: compiled, or with activation checkpointing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from swarm.errors import PolicyError
from swarm.policy.experts.casting import are_cast
from swarm.policy.loading import Policy
from swarm.policy.reading import has_encoder
from swarm.policy.scoring.compiled import compiled as compiled_once

Forward = Callable[..., object]
COMPILED_PARAMETERS = 50_000_000
"""Least parameters of a model whose layers are compiled by default: passes of smaller ones are short already."""


class TrainingLayers:
    """Replaces the forward functions of a model's repeated layers while gradients are computed.

    The model stays in evaluation mode: transformers' own checkpointing needs training mode, which enables dropout.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        compiled: bool,
        checkpointed: bool | None,
        compile_code: Callable[[Forward], Forward] = compiled_once,
    ) -> None:
        """`checkpointed` None: with CUDA, where possible. `compile_code` compiles a forward function.

        Raises `PolicyError` when either is requested and the model's layers cannot be identified.
        """
        self._layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        self.compiled = compiled
        """May be changed between passes, and so may `checkpointed`."""
        self.checkpointed = is_checkpointed(checkpointed, model.device.type, bool(self._layers))
        self._compile = compile_code
        self._thread: int | None = None
        """The one that trains; others generate meanwhile."""
        if (self.compiled or self.checkpointed) and not self._layers:
            raise PolicyError(
                f"the layers of {type(model).__name__} cannot be identified; set update.compile and "
                "update.gradient_checkpointing to false"
            )

    @contextmanager
    def active(self) -> Iterator[None]:
        """From the first forward pass of an update to its last backward pass."""
        self._thread = threading.get_ident()
        for layer in self._layers:
            layer.forward = partial(self._run, layer)  # an instance attribute takes precedence over the class's
        try:
            yield
        finally:
            for layer in self._layers:
                del layer.forward

    def _run(self, layer: nn.Module, hidden: Tensor, *args: object, **kwargs: object) -> object:
        code: Forward = type(layer).forward
        if threading.get_ident() != self._thread:
            return code(layer, hidden, *args, **kwargs)
        learns = torch.is_grad_enabled()
        if self.compiled:
            code = self._compile(code)
            if learns and not hidden.requires_grad:
                hidden = hidden.detach().requires_grad_()  # the first layer behind frozen embeddings: as all others
        if self.checkpointed and learns:
            return checkpoint(partial(code, layer, **kwargs), hidden, *args, use_reentrant=False)
        return code(layer, hidden, *args, **kwargs)


def is_checkpointed(chosen: bool | None, device: str, possible: bool = True) -> bool:
    """Whether layers are checkpointed on this type of device: as chosen, by default with CUDA where possible."""
    return possible and device == "cuda" if chosen is None else chosen


def is_compiled(chosen: bool | None, policy: Policy) -> bool:
    """Whether a policy's layers are compiled: as chosen, by default where that is known to pay."""
    return chosen if chosen is not None else policy.ranks.size == 1 and pays(policy.model, policy.device.type)


def pays(model: PreTrainedModel, device: str) -> bool:
    """Whether compiled layers are worth the wait on this type of device: with CUDA, for a dense model of some size
    that reads text only."""
    return (
        device == "cuda"
        and not has_encoder(model.config)
        and sum(weight.numel() for weight in model.parameters()) >= COMPILED_PARAMETERS
        and not any(map(are_cast, model.modules()))
        and any(isinstance(module, GradientCheckpointingLayer) for module in model.modules())
    )
