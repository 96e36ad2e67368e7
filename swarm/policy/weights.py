"""New weights for a policy that is in use: checked whole before the first one is changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from swarm.errors import WeightsRefused
from swarm.policy.loading import Policy

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
NAMED = 3
"""How many of many wrong names a message lists."""


def swap_weights(policy: Policy, weights: Mapping[str, Tensor], version: int) -> None:
    """Put `weights` in place of the policy's, between two decode steps. Raises `WeightsRefused`, nothing changed.

    Every parameter that a checkpoint holds must be there: all, or the adapters'. Without adapters, buffers and the
    other names of tied parameters may be there too. Tensors of another dtype or device are converted.
    """
    check_weights(policy, weights)
    with policy.gate.change(), torch.no_grad():
        for name, parameter in policy.weights.items():
            parameter.copy_(policy.ranks.cut(weights[name], parameter))
        policy.version = version


def whole_weights(policy: Policy) -> dict[str, Tensor]:
    """The policy's weights as `swap_weights` takes them; every rank has to call it, the leader gets them."""
    return {name: policy.ranks.whole(value.detach()) for name, value in policy.weights.items()}


def read_weights(directory: Path) -> dict[str, Tensor]:
    """The tensors of a directory in Hugging Face format, on the CPU. Raises `WeightsRefused`."""
    try:
        if (directory / INDEX).exists():
            shards = sorted(set(json.loads((directory / INDEX).read_bytes())["weight_map"].values()))
        else:
            shards = [SINGLE]
        return {name: tensor for shard in shards for name, tensor in load_file(directory / shard).items()}
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise WeightsRefused(f"the weights in {directory} cannot be read: {error}") from error


def check_weights(policy: Policy, weights: Mapping[str, Tensor]) -> None:
    """Raises `WeightsRefused` for what cannot take the place of the policy's weights."""
    own = policy.weights
    known = set(own) if policy.adapters else set(policy.model.state_dict())
    if missing := [name for name in own if name not in weights]:
        raise WeightsRefused(f"the new weights lack {_list(missing)}: they are of another model")
    if unknown := [name for name in weights if name not in known]:
        raise WeightsRefused(f"this policy has no {_list(unknown)}: the new weights are of another model")
    for name, parameter in own.items():
        new = weights[name]
        if new.shape != parameter.shape:
            raise WeightsRefused(f"{name} must have the shape {list(parameter.shape)}, got {list(new.shape)}")
        if not (new.is_floating_point() and bool(new.isfinite().all())):
            raise WeightsRefused(f"{name} must hold finite floating-point numbers, got others ({new.dtype})")


def _list(names: list[str]) -> str:
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + rest
