"""Messages between a `ProcessEngine` and its process, as msgpack on a socket, and weights in shared memory."""

from __future__ import annotations

import math
import mmap
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence

import msgspec
import torch
from torch import Tensor

from swarm.errors import EngineError, OutOfMemory, SamplingError
from swarm.types import Answers, Context, NextTurn, Sampling

RAISED = {error.__name__: error for error in (EngineError, OutOfMemory, SamplingError)}
"""Errors that the process reports instead of exiting."""
DTYPE = torch.float32
"""Type of trained weights."""
encode = msgspec.msgpack.Encoder().encode


class Setup(msgspec.Struct, frozen=True):
    """First message."""

    policy: bytes
    """JSON of `PolicySettings`."""
    generation: bytes
    """JSON of `GenerationSettings`."""
    shapes: dict[str, list[int]]
    """Shapes of the weights, in their order in shared memory."""


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Stream the answers to these prompts, then an `End`."""

    prompts: list[Context]
    num_completions: int
    sampling: Sampling
    seed: int
    num_episodes: int = 0
    """Episodes whose turns follow in `More`."""


class More(msgspec.Struct, frozen=True, tag="more"):
    """Turns that have become ready; ignored when there is no generation."""

    turns: list[NextTurn]
    continuing: list[int]
    """See `Turns`."""
    complete: bool
    """Whether no turn will follow."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Cancel the current generation; ignored when there is none."""


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """One prompt's answers."""

    index: int
    answers: Answers


class End(msgspec.Struct, frozen=True, tag="end"):
    """The end of a stream."""

    error: str = ""
    """Name of one of `RAISED`; empty when all answers were sent or generation was stopped."""
    message: str = ""


class Swap(msgspec.Struct, frozen=True, tag="swap"):
    """Install the weights in shared memory as this version."""

    version: int


class Swapped(msgspec.Struct, frozen=True, tag="swapped"):
    """The weights are copied, so that shared memory may take the next ones."""


Order = Ask | More | Stop | Swap
Reply = Answered | End | Swapped

decode_setup = msgspec.msgpack.Decoder(Setup).decode
decode_order = msgspec.msgpack.Decoder[Order](Order).decode
decode_reply = msgspec.msgpack.Decoder[Reply](Reply).decode


def shared_memory(num_bytes: int) -> int:
    """A file descriptor of so much memory, freed when the last process closes it or ends."""
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
