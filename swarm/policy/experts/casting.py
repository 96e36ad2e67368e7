"""Experts in the type of the forward pass.

Autocast knows matrix products of linear layers, but not the grouped ones that transformers computes all chosen experts
with: those take their weights' type, so that float32 weights would be multiplied in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

GROUPED, CAST = "grouped_mm", "swarm_grouped_mm"
"""The names of transformers' implementation, and of the same with casts."""


def cast_experts(model: PreTrainedModel) -> None:
    """Make experts that are computed by grouped products take part in autocast."""
    chosen = model.get_experts_implementation()
    model.set_experts_implementation({part: CAST if each == GROUPED else each for part, each in chosen.items()})


def are_cast(module: nn.Module) -> bool:
    """Whether a module holds experts whose parameters `cast_experts` casts."""
    values = vars(module)
    return "is_concatenated" in values and values["config"]._experts_implementation == CAST


class _Rounded:
    """Experts as transformers' function sees them: parameters in another type, all else as it is."""

    def __init__(self, experts: nn.Module, dtype: torch.dtype) -> None:
        self._experts = experts
        self._dtype = dtype

    def __getattr__(self, name: str) -> object:
        value = getattr(self._experts, name)
        return value.to(self._dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def _compute(experts: nn.Module, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    kind = hidden.device.type
    seen = _Rounded(experts, torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else experts
    result: Tensor = grouped_mm_experts_forward(seen, hidden, chosen, weights)
    return result


ALL_EXPERTS_FUNCTIONS.register(CAST, _compute)
