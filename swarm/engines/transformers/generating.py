"""The model that generates: the trained one, or a copy whose matrices have the type of the forward passes.

Autocast casts float32 matrices in every pass, so that a decode step moves four times the bytes that it needs. The copy
casts them once after a change of the weights. It shares everything else, such as norms, embeddings and matrices that
have the type already, with the trained model, and computes the very same numbers. So adapters stay beside their
matrices: a merged matrix would be rounded once more, as if the sampler were another policy than the trained one. Its
norms in float32 are one operation each, where they give what the model's code gives.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from swarm.policy.experts import Routers, are_cast
from swarm.policy.loading import Policy

LINEAR = (nn.Linear, Conv1D)
"""Layers whose weight and bias autocast casts, whatever their input."""


def is_cast(module: nn.Module) -> bool:
    """Whether each pass in half precision casts the parameters of this module itself, unless they have its type."""
    return type(module) in LINEAR or are_cast(module)


@dataclass(frozen=True)
class _Cast:
    """A layer of the copy, and its source."""

    trained: nn.Module
    copied: nn.Module

    def refresh(self) -> None:
        """Cast the present weights."""
        for name, copied in self.copied.named_parameters(recurse=False):
            copied.copy_(self.trained.get_parameter(name))


class GeneratingModel:
    """The model to run in the `compute` context of a policy, and its routers."""

    def __init__(self, policy: Policy) -> None:
        """The trained model; a copy, if it is of use, is made by the first `refresh`."""
        self.model: PreTrainedModel = policy.model
        self.routers = policy.routers
        self._policy = policy
        self._casts: list[_Cast] = []
        self._changes: int | None = None

    def tensors(self) -> Iterator[Tensor]:
        """Parameters and buffers that a pass reads."""
        yield from self.model.parameters()
        yield from self.model.buffers()

    @torch.inference_mode(False)
    @torch.no_grad()
    def refresh(self) -> None:
        """Take the policy's present weights. The gate must be held; does nothing if they have not changed."""
        policy = self._policy
        # The gathered weights of several ranks are in float32, and gone after generation.
        if self._changes == policy.gate.changes or policy.dtype is torch.float32 or policy.ranks.size > 1:
            return
        if self._changes is None:
            self.model, self._casts = _copied(policy)
            self.routers = Routers(self.model) if policy.routers is not None else None
        for cast in self._casts:
            cast.refresh()
        self._changes = policy.gate.changes


def _copied(policy: Policy) -> tuple[PreTrainedModel, list[_Cast]]:
    """A second model with separate matrices, still empty; other tensors are those of the first."""
    twin: PreTrainedModel = _sharing_tensors(policy.model)
    casts = []
    for name, trained in policy.model.named_modules():
        if not is_cast(trained) or all(each.dtype is policy.dtype for each in trained.parameters(recurse=False)):
            continue
        layer = twin.get_submodule(name)
        for part, value in list(layer.named_parameters(recurse=False)):
            setattr(layer, part, nn.Parameter(torch.empty_like(value, dtype=policy.dtype), requires_grad=False))
        casts.append(_Cast(trained, layer))
    _fuse_norms(twin)
    return twin, casts


def _fuse_norms(twin: PreTrainedModel) -> None:
    """Replace RMS norms, some six operations in most families, by one operation."""
    for module in twin.modules():
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if isinstance(eps, float) and _is_rms_norm(module, eps):
            module.forward = partial(_rms_norm, module, eps, module.forward)


def _is_rms_norm(module: nn.Module, eps: float) -> bool:
    """Whether a module computes an RMS norm and has float32 weights only."""
    weights = dict(module.named_parameters())
    weight = weights.pop("weight", None)
    if weights or weight is None or weight.dim() != 1 or weight.dtype is not torch.float32:
        return False
    sample = torch.linspace(-2, 3, 3 * len(weight), device=weight.device).view(3, -1)
    try:
        own = module(sample)
    except Exception:  # it takes other inputs
        return False
    fused = functional.rms_norm(sample, weight.shape, weight, eps)
    return isinstance(own, Tensor) and own.dtype is fused.dtype and torch.allclose(own, fused, rtol=1e-5, atol=1e-6)


def _rms_norm(module: nn.Module, eps: float, otherwise: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    if hidden.dtype is not torch.float32:
        return otherwise(hidden)  # which rounds between the two products
    weight = module.get_parameter("weight")
    return functional.rms_norm(hidden, weight.shape, weight, eps)


def _sharing_tensors(module: nn.Module) -> nn.Module:
    """A copy of the modules alone."""
    tensors: list[Tensor] = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
