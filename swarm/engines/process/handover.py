"""Weights in shared memory: one process writes them, the other copies them into its model."""

from __future__ import annotations

import math
import mmap
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

DTYPE = torch.float32
"""Type of trained weights."""


def shared_memory(num_bytes: int) -> int:
    """A file descriptor of that much memory, freed when the last process closes it or ends."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("weights")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, num_bytes)
    return descriptor


def num_bytes(shapes: Mapping[str, Sequence[int]]) -> int:
    """Bytes of weights of these shapes."""
    return sum(math.prod(shape) for shape in shapes.values()) * DTYPE.itemsize


def map_weights(descriptor: int, shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Tensors of these shapes, consecutive in the memory of `descriptor`."""
    flat = torch.frombuffer(mmap.mmap(descriptor, num_bytes(shapes)), dtype=DTYPE)
    weights, start = {}, 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        weights[name] = flat[start : start + size].view(*shape)
        start += size
    return weights
