"""Weights for vLLM on the policy's own GPU, through a buffer there that both processes map.

weights ──▶ a piece of them, rounded, in the buffer ──▶ vLLM copies it ──▶ the next piece, ... ──▶ `Load`

That is vLLM's own transfer, with its backend `ipc` and packed pieces. Its code for trainers needs vLLM in their Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from swarm.engines.vllm.messages import Packed, Shared

BUFFER_BYTES = 2**28
"""Of the buffer, unless one weight is larger: training and vLLM leave little memory."""


class GpuBuffer:
    """Memory of a GPU that another process can map."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        """Raises `RuntimeError` where driver or allocator cannot share memory, or none is left."""
        self.content = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        """[num_bytes]"""
        _, (*_, handle, size, offset, _, counter, counter_offset, event, waits) = reduce_tensor(self.content)  # type: ignore[no-untyped-call]
        gpu = str(torch.cuda.get_device_properties(device).uuid)
        self.shared = Shared(gpu, num_bytes, handle, size, offset, counter, counter_offset, event, waits)

    def flush(self) -> None:
        """Wait until all that was written can be read."""
        torch.cuda.synchronize(self.content.device)

    def close(self) -> None:
        """Free it, once the other process has let go of it."""
        del self.content
        torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]


def buffer_bytes(weights: Iterable[tuple[str, Tensor, torch.dtype]]) -> int:
    """Of a buffer for pieces of these weights, each in the type beside it."""
    sizes = [value.numel() * dtype.itemsize for _, value, dtype in weights]
    return max(min(sum(sizes), BUFFER_BYTES), *sizes)


def pieces(buffer: GpuBuffer, weights: Iterable[tuple[str, Tensor, torch.dtype]]) -> Iterator[Packed]:
    """Fill the buffer with as many weights of one type as it holds, in their order; the next piece takes the place of
    the last."""
    for dtype, alike in groupby(weights, lambda each: each[2]):
        room = len(buffer.content) // dtype.itemsize
        packed: dict[str, Tensor] = {}
        for name, value, _ in alike:
            if sum(each.numel() for each in packed.values()) + value.numel() > room:
                yield _filled(buffer, packed, dtype)
                packed = {}
            packed[name] = value
        yield _filled(buffer, packed, dtype)


def _filled(buffer: GpuBuffer, weights: Mapping[str, Tensor], dtype: torch.dtype) -> Packed:
    start = 0
    content = buffer.content[: len(buffer.content) // dtype.itemsize * dtype.itemsize].view(dtype)
    for value in weights.values():
        content[start : start + value.numel()].view_as(value).copy_(value)
        start += value.numel()
    buffer.flush()
    shapes = tuple(tuple(value.shape) for value in weights.values())
    return Packed(buffer.shared, tuple(weights), shapes, str(dtype).removeprefix("torch."), dtype.itemsize)
