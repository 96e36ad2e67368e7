"""Packs weights into bytes for sending, in a chosen precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import msgspec
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import Module

from swarm.errors import SnapshotError, SwarmError
from swarm.foreign import clean

Precision = Literal["native", "bfloat16", "int8"]
"""Lossless, rounded to bfloat16, or matrices rounded to 8 bits with one scale per row."""

SCALE = ":scale"
INT8_MAX = 127
HEADER_BYTES = 2**20
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 2**25
"""Of a snapshot that is read: 200 bytes each for more tensors than any model has."""
MAX_DIMENSIONS = 8
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
"""Of the types that a snapshot may have: those of weights in whole precision, and of buffers."""


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


def unpack(
    snapshot: bytes, check: Callable[[Mapping[str, torch.Size]], None] = lambda shapes: None
) -> dict[str, Tensor]:
    """The weights in a snapshot, on the CPU; what a hostile one raises is a refusal, too.

    `check` gets the shapes of all weights by name, from the header, and raises for those that are not wanted: nothing
    has been allocated then. Raises `SnapshotError`.
    """
    try:
        stated = _stated(snapshot)
        check({name: torch.Size(tensor.shape) for name, tensor in stated.items() if not name.endswith(SCALE)})
        stored = load(snapshot)
        if {name: tuple(tensor.shape) for name, tensor in stored.items()} != {n: t.shape for n, t in stated.items()}:
            raise SnapshotError("the snapshot cannot be read: its header can be understood in two ways")
        names = [name for name in stored if not name.endswith(SCALE)]
        return {
            name: stored[name].float() * stored[name + SCALE] if name + SCALE in stored else stored[name]
            for name in names
        }
    except SwarmError:
        raise
    except Exception as error:  # of two parsers and of torch, on foreign bytes
        raise SnapshotError(f"the snapshot cannot be read: {clean(str(error))}") from error


class _Stated(msgspec.Struct, frozen=True):
    """What a header says of a tensor."""

    dtype: str
    shape: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, le=2**40)], ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]
    data_offsets: tuple[int, int]


def _stated(snapshot: bytes) -> dict[str, _Stated]:
    """The tensors by the header. Raises `SnapshotError` for types, sizes and scales that `pack` does not write."""
    length = int.from_bytes(snapshot[:LENGTH_BYTES], "little")
    if length > min(MAX_HEADER_BYTES, len(snapshot) - LENGTH_BYTES):
        raise SnapshotError(
            f"the snapshot cannot be read: it has {len(snapshot)} bytes, and says that {length} of them are its header"
        )
    header = snapshot[LENGTH_BYTES : LENGTH_BYTES + length]
    raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
    raw.pop("__metadata__", None)
    stated = {name: msgspec.json.decode(entry, type=_Stated) for name, entry in raw.items()}
    for name, tensor in stated.items():
        _check_stated(name, tensor, stated)
    return stated


def _check_stated(name: str, tensor: _Stated, stated: Mapping[str, _Stated]) -> None:
    begin, end = tensor.data_offsets
    if tensor.dtype not in ITEM_BYTES or end - begin != math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype]:
        raise SnapshotError(
            f"the snapshot's {clean(name)} cannot be {clean(tensor.dtype)} of the shape {list(tensor.shape)} in "
            f"{end - begin} bytes"
        )
    if not name.endswith(SCALE):
        return
    matrix = stated.get(name.removesuffix(SCALE))
    if matrix is None or matrix.dtype != "I8" or tensor.dtype != "F32" or tensor.shape != _scale_shape(matrix.shape):
        raise SnapshotError(
            f"the snapshot's {clean(name)} must be a float32 for each row of a matrix in int8, got the shape "
            f"{list(tensor.shape)} for {'nothing' if matrix is None else f'{matrix.dtype} {list(matrix.shape)}'}"
        )


def _scale_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """[R, 1, ...] for a matrix [R, ...], as in `quantise`."""
    return (*shape[:1], *(1 for _ in shape[1:]))


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
