"""Replaces the weights of a policy in use; checks all of them before it changes any."""

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
"""Most wrong names that a message lists."""


def swap_weights(policy: Policy, weights: Mapping[str, Tensor], version: int) -> None:
    """Replace the policy's weights between two decode steps.

    Raises `WeightsRefused` without changing anything. Every parameter that a checkpoint holds is required: all, or the
    adapters'. Without adapters, buffers and the other names of tied parameters are allowed. Tensors of another dtype or
    device are converted.
    """
    check_weights(policy, weights)
    with policy.gate.change(), torch.no_grad():
        for name, parameter in policy.weights.items():
            parameter.copy_(policy.ranks.cut(weights[name], parameter))
        policy.version = version


def whole_weights(policy: Policy) -> dict[str, Tensor]:
    """The policy's weights for `swap_weights`; every rank must call it, the leader gets the result."""
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
    """Raises `WeightsRefused` for weights that do not fit the policy."""
    own = policy.weights
    known = set(own) if policy.adapters else set(policy.model.state_dict())
    if missing := [name for name in own if name not in weights]:
        raise WeightsRefused(f"the new weights lack {_list(missing)}: they belong to another model")
    if unknown := [name for name in weights if name not in known]:
        raise WeightsRefused(f"this policy has no {_list(unknown)}: the new weights belong to another model")
    for name, parameter in own.items():
        new = weights[name]
        if new.shape != parameter.shape:
            raise WeightsRefused(f"{name} must have the shape {list(parameter.shape)}, got {list(new.shape)}")
        if not (new.is_floating_point() and bool(new.isfinite().all())):
            raise WeightsRefused(f"{name} must hold finite floating-point numbers, got others ({new.dtype})")


def _list(names: list[str]) -> str:
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + rest
