"""Weights as bytes that travel: whole, or as their difference from a snapshot that the receiver has.

A step of reinforcement learning moves weights by less than most of them can express: the exclusive or of two snapshots
is mostly zeros, above all in the high bytes. Sorted into planes of equal significance, it compresses well, and exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
import zstandard
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from swarm.errors import SnapshotError

Precision = Literal["native", "bfloat16", "int8"]
"""What travels: every bit, weights rounded to bfloat16, or matrices to 8 bits with one scale a row."""

LEVEL = 3
PLANES = 4
"""Bytes of a float32; those of two bfloat16 in a row are sorted as well by it."""
SCALE = ":scale"
INT8_MAX = 127


def pack(weights: Mapping[str, Tensor], precision: Precision = "native") -> bytes:
    """Safetensors bytes of weights on any device, the same for equal weights; floats in `precision`."""
    packed: dict[str, Tensor] = {}
    for name in sorted(weights):
        tensor = weights[name].detach().cpu()
        if not tensor.is_floating_point() or precision == "native":
            packed[name] = tensor.contiguous()
        elif precision == "int8" and tensor.ndim >= 2:
            packed[name], packed[name + SCALE] = _quantise(tensor)
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


def delta(new: bytes, parent: bytes) -> bytes | None:
    """What makes `new` of `parent`, exactly; None when their sizes differ: then there is nothing to gain."""
    if len(new) != len(parent):
        return None
    changed = np.bitwise_xor(np.frombuffer(new, np.uint8), np.frombuffer(parent, np.uint8))
    return zstandard.ZstdCompressor(LEVEL).compress(_to_planes(changed))


def apply_delta(change: bytes, parent: bytes) -> bytes:
    """The snapshot that `delta` was given. Raises `SnapshotError` when it was not made for this parent's size."""
    try:
        if zstandard.frame_content_size(change) != len(parent):
            raise SnapshotError(f"the delta is not for a parent of {len(parent)} bytes")
        planes = zstandard.ZstdDecompressor().decompress(change, max_output_size=len(parent))
    except zstandard.ZstdError as error:
        raise SnapshotError(f"the delta cannot be read: {error}") from error
    changed = _from_planes(np.frombuffer(planes, np.uint8))
    restored: bytes = np.bitwise_xor(changed, np.frombuffer(parent, np.uint8)).tobytes()
    return restored


def digest(snapshot: bytes) -> bytes:
    """What a snapshot is named by: 32 bytes."""
    return hashlib.blake2b(snapshot, digest_size=32).digest()


def _quantise(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """int8 [R, ...] and float32 scale [R, 1, ...]: tensor = int8 x scale to within scale / 2."""
    values = tensor.float()
    scale = values.abs().amax(dim=tuple(range(1, values.ndim)), keepdim=True) / INT8_MAX
    rounded = (values / scale.clamp(min=torch.finfo(torch.float32).tiny)).round().to(torch.int8)
    return rounded.contiguous(), scale.contiguous()


def _to_planes(content: np.ndarray) -> bytes:
    """Every fourth byte together, from each of four starts; what does not fill a row comes last."""
    even = len(content) - len(content) % PLANES
    planes = np.ascontiguousarray(content[:even].reshape(-1, PLANES).T)
    return planes.tobytes() + content[even:].tobytes()


def _from_planes(planes: np.ndarray) -> np.ndarray:
    even = len(planes) - len(planes) % PLANES
    return np.concatenate([planes[:even].reshape(PLANES, -1).T.reshape(-1), planes[even:]])
