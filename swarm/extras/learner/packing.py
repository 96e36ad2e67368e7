"""Snapshots: weights in a file, in a chosen precision."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import torch
from torch import Tensor
from torch.nn import Module

from swarm.errors import SnapshotError, SwarmError
from swarm.files import RandomAccessFile
from swarm.policy.adapters import quantize_int8
from swarm.policy.loading import Policy
from swarm.policy.weights import check_shapes
from swarm.sanitize import clean

Precision = Literal["native", "bfloat16", "int8"]
"""Lossless, rounded to bfloat16, or matrices rounded to 8 bits with one scale per row."""

SCALE = ":scale"
HEADER_BYTES = 2**20
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 2**25
"""Longest header that is read: 200 bytes each for more tensors than any model has."""
MAX_DIMENSIONS = 8
DTYPES = {
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Types that a snapshot may have, those of weights in whole precision and of buffers, in the order of the file."""


def pack(
    path: Path, weights: Mapping[str, Tensor], tensors: Iterable[tuple[str, Tensor]], precision: Precision = "native"
) -> None:
    """Write the weights to a file in safetensors format, one tensor at a time; deterministic, floats in `precision`.

    `tensors`: the tensors of all names, on any device; of `weights` only shapes and types are used. Raises `OSError`;
    nothing stays then.
    """
    stated, header = _header(weights, precision)
    file = RandomAccessFile(path, fresh=True)
    try:
        file.write(0, header)
        for name, tensor in tensors:
            for part, packed in _packed(name, tensor.detach().cpu(), precision):
                content = packed.contiguous().reshape(-1).view(torch.uint8).numpy()
                file.write(len(header) + stated[part].data_offsets[0], content.data)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _packed(name: str, tensor: Tensor, precision: Precision) -> Iterator[tuple[str, Tensor]]:
    """A tensor as it is stored: names and tensors."""
    if not tensor.is_floating_point() or precision == "native":
        yield name, tensor
    elif precision == "int8" and tensor.ndim >= 2:
        matrix, scale = quantize_int8(tensor)
        yield from ((name, matrix), (name + SCALE, scale))
    else:
        yield name, tensor.to(torch.bfloat16)


def _header(weights: Mapping[str, Tensor], precision: Precision) -> tuple[dict[str, _Stated], bytes]:
    """The stored tensors by name, and the start of the file that says so; as `safetensors` writes it."""
    packed = [
        each
        for name, tensor in weights.items()
        for each in _packed(name, torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"), precision)
    ]
    order = list(DTYPES)
    types = {dtype: name for name, dtype in DTYPES.items()}
    stated: dict[str, _Stated] = {}
    end = 0
    for name, tensor in sorted(packed, key=lambda each: (order.index(types[each[1].dtype]), each[0])):
        begin, end = end, end + tensor.numel() * tensor.element_size()
        stated[name] = _Stated(types[tensor.dtype], tuple(tensor.shape), (begin, end))
    content = msgspec.json.encode(stated)
    content += b" " * (-len(content) % LENGTH_BYTES)
    return stated, len(content).to_bytes(LENGTH_BYTES, "little") + content


class SnapshotWeights(Mapping[str, Tensor]):
    """The weights in a snapshot, on the CPU. Each is read from the file whenever it is used."""

    def __init__(self, file: RandomAccessFile) -> None:
        """Read the header only. Raises `SnapshotError` for one that `pack` does not write, however hostile."""
        try:
            self._stated, self._begin = _read_header(file)
        except SwarmError:
            raise
        except Exception as error:  # of the parser, on untrusted bytes
            raise SnapshotError(f"the snapshot cannot be read: {clean(str(error))}") from error
        self._file = file
        self.shapes = {
            name: torch.Size(tensor.shape) for name, tensor in self._stated.items() if not name.endswith(SCALE)
        }

    def __getitem__(self, name: str) -> Tensor:
        """Read a tensor. Raises `SnapshotError`."""
        if name not in self.shapes:
            raise KeyError(name)
        tensor = self._read(name)
        return tensor.float() * self._read(name + SCALE) if name + SCALE in self._stated else tensor

    def __contains__(self, name: object) -> bool:
        """Whether there is a tensor of this name."""
        return name in self.shapes

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self.shapes)

    def __len__(self) -> int:
        """Number of tensors."""
        return len(self.shapes)

    def _read(self, name: str) -> Tensor:
        stated = self._stated[name]
        begin, end = stated.data_offsets
        content = torch.empty(end - begin, dtype=torch.uint8)
        if self._file.read_into(self._begin + begin, content.numpy().data) < end - begin:
            raise SnapshotError(f"the snapshot cannot be read: its file ends in {clean(name)}")
        return content.view(DTYPES[stated.dtype]).reshape(stated.shape)


class _Stated(msgspec.Struct, frozen=True):
    """A tensor by the header."""

    dtype: str
    shape: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, le=2**40)], ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]
    data_offsets: tuple[int, int]


def _read_header(file: RandomAccessFile) -> tuple[dict[str, _Stated], int]:
    """The tensors by name, and where their data begin. Raises `SnapshotError` for types, sizes and scales that `pack`
    does not write."""
    num_bytes = file.size - LENGTH_BYTES
    length = int.from_bytes(file.read(0, LENGTH_BYTES), "little")
    if length > min(MAX_HEADER_BYTES, num_bytes):
        raise SnapshotError(
            f"the snapshot cannot be read: it has {file.size} bytes, and says that {length} of them are its header"
        )
    raw = msgspec.json.decode(file.read(LENGTH_BYTES, length), type=dict[str, msgspec.Raw])
    raw.pop("__metadata__", None)
    stated = {name: msgspec.json.decode(entry, type=_Stated) for name, entry in raw.items()}
    end = 0
    for name, tensor in sorted(stated.items(), key=lambda each: each[1].data_offsets):
        _check_stated(name, tensor, stated)
        if tensor.data_offsets[0] != end:
            raise SnapshotError(f"the snapshot's {clean(name)} must begin at byte {end}, where another tensor ends")
        end = tensor.data_offsets[1]
    if end != num_bytes - length:
        raise SnapshotError(f"the snapshot must have {end} bytes after its header, got {num_bytes - length}")
    return stated, LENGTH_BYTES + length


def _check_stated(name: str, tensor: _Stated, stated: Mapping[str, _Stated]) -> None:
    begin, end = tensor.data_offsets
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None or end - begin != math.prod(tensor.shape) * dtype.itemsize:
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
    """[R, 1, ...] for a matrix [R, ...], as in `quantize_int8`."""
    return (*shape[:1], *(1 for _ in shape[1:]))


def most_bytes(model: Module) -> int:
    """Upper bound on the size of a snapshot that fits a model, in any precision and with duplicated tied weights."""
    tensors: list[Tensor] = list(model.state_dict().values())
    return HEADER_BYTES + 4 * sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def whole_weights(policy: Policy) -> dict[str, Tensor]:
    """The policy's weights for `swap_weights`; every rank must call it, the leader gets the result."""
    return {name: policy.ranks.whole(value.detach()) for name, value in policy.weights.items()}


def pack_weights(policy: Policy, path: Path, precision: Precision) -> None:
    """Write a snapshot of the policy. Every rank must call it, and gathers one tensor at a time; the leader writes.

    Raises `OSError` on the leader; nothing stays then.
    """
    weights = policy.weights
    tensors = ((name, policy.ranks.whole(weights[name].detach())) for name in sorted(weights))
    try:
        if policy.ranks.rank == 0:
            pack(path, weights, tensors, precision)
    finally:  # the other ranks wait for this one
        for _ in tensors:
            pass


def read_snapshot(policy: Policy, snapshot: RandomAccessFile) -> SnapshotWeights:
    """The weights in a snapshot for `swap_weights`; names and shapes are compared, and no tensor is read yet.

    Raises `SnapshotError` for a snapshot that cannot be read, `WeightsRefused` for one that does not fit the policy.
    """
    weights = SnapshotWeights(snapshot)
    check_shapes(policy, weights.shapes)
    return weights
