"""The weights of a policy in use: replaced after all of them were checked, between two decode steps."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from swarm.errors import EngineError, SnapshotError, WeightsRefused
from swarm.policy.loading import Policy
from swarm.sanitize import clean

NAMED = 3
"""Most wrong names that a message lists."""


def swap_weights(policy: Policy, weights: Mapping[str, Tensor], version: int) -> None:
    """Replace the policy's weights between two decode steps.

    Raises `WeightsRefused` without changing anything. Every parameter that a checkpoint holds is required: all, or the
    adapters'. Without adapters, buffers and the other names of tied parameters are allowed. Tensors of another dtype or
    device are converted. Raises `EngineError` if they can no longer be read after these checks: the policy then has
    some of both.
    """
    check_weights(policy, weights)
    with policy.gate.change(), torch.no_grad():
        try:
            for name, parameter in policy.weights.items():
                parameter.copy_(policy.ranks.cut(weights[name], parameter))
        except (SnapshotError, OSError) as error:
            raise EngineError(f"the policy has only a part of version {version}: {error}") from error
        policy.version = version


def check_shapes(policy: Policy, shapes: Mapping[str, torch.Size]) -> None:
    """Raises `WeightsRefused` for weights of other names or shapes than the policy's."""
    own = policy.weights
    known = own if policy.adapters else {**policy.model.state_dict(), **own}
    if missing := [name for name in own if name not in shapes]:
        raise WeightsRefused(f"the new weights lack {_list(missing)}: they belong to another model")
    if unknown := [name for name in shapes if name not in known]:
        raise WeightsRefused(f"this policy has no {_list(unknown)}: the new weights belong to another model")
    for name, shape in shapes.items():
        if shape != known[name].shape:
            raise WeightsRefused(f"{name} must have the shape {list(known[name].shape)}, got {list(shape)}")


def check_weights(policy: Policy, weights: Mapping[str, Tensor]) -> None:
    """Raises `WeightsRefused` for weights that do not fit the policy."""
    # Weights in a file know their shapes without reading a tensor.
    shapes = getattr(weights, "shapes", None) or {name: each.shape for name, each in weights.items()}
    check_shapes(policy, shapes)
    for name in policy.weights:
        new = weights[name]
        if not (new.is_floating_point() and bool(new.isfinite().all())):
            raise WeightsRefused(f"{name} must hold finite floating-point numbers, got others ({new.dtype})")


def _list(names: list[str]) -> str:
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(map(clean, names[:NAMED])) + rest
