"""Packs weights into bytes for sending, in a chosen precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import Module

from swarm.errors import SnapshotError

Precision = Literal["native", "bfloat16", "int8"]
"""Lossless, rounded to bfloat16, or matrices rounded to 8 bits with one scale per row."""

SCALE = ":scale"
INT8_MAX = 127
HEADER_BYTES = 2**20


def pack(weights: Mapping[str, Tensor], precision: Precision = "native") -> bytes:
    """Safetensors bytes of the weights, deterministic; floats in `precision`. The weights may be on any device."""
    packed: dict[str, Tensor] = {}
    for name in sorted(weights):
        tensor = weights[name].detach().cpu()
        if not tensor.is_floating_point() or precision == "native":
            packed[name] = tensor.contiguous()
        elif precision == "int8" and tensor.ndim >= 2:
            packed[name], packed[name + SCALE] = (part.contiguous() for part in quantise(tensor))
        else:
            packed[name] = tensor.to(torch.bfloat16).contiguous()
    content: bytes = save({name: tensor.clone() for name, tensor in packed.items()})  # tied weights are written out
    return content


def unpack(snapshot: bytes) -> dict[str, Tensor]:
    """The weights in a snapshot, on the CPU. Raises `SnapshotError`."""
    try:
        stored = load(snapshot)
    except (SafetensorError, ValueError, KeyError) as error:
        raise SnapshotError(f"the snapshot cannot be read: {error}") from error
    names = [name for name in stored if not name.endswith(SCALE)]
    return {
        name: stored[name].float() * stored[name + SCALE] if name + SCALE in stored else stored[name] for name in names
    }


def most_bytes(model: Module) -> int:
    """Upper bound on the size of a snapshot that fits a model, in any precision and with duplicated tied weights."""
    tensors: list[Tensor] = list(model.state_dict().values())
    return HEADER_BYTES + 4 * sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def quantise(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """int8 [R, ...] and float32 scale [R, 1, ...]: tensor = int8 x scale to within scale / 2."""
    values = tensor.detach().float()
    scale = values.abs().amax(dim=tuple(range(1, values.ndim)), keepdim=True) / INT8_MAX
    rounded = (values / scale.clamp(min=torch.finfo(torch.float32).tiny)).round().to(torch.int8)
    return rounded, scale
