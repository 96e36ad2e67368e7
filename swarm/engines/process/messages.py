"""Messages between a `ProcessEngine` and its process, as msgpack on two sockets: work, and changes of weights."""

from __future__ import annotations

import msgspec

from swarm.errors import EngineError, OutOfMemory, SamplingError
from swarm.types import Answers, Context, NextTurn, Sampling

RAISED = {error.__name__: error for error in (EngineError, OutOfMemory, SamplingError)}
"""Errors that the process reports instead of exiting."""


class Setup(msgspec.Struct, frozen=True):
    """First message on the work socket."""

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
    """As in `Turns`."""
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


class Swap(msgspec.Struct, frozen=True):
    """Install the weights in shared memory as this version; the reply is the version, once they are copied."""

    version: int


Order = Ask | More | Stop
Reply = Answered | End

encode = msgspec.msgpack.Encoder().encode
decode_setup = msgspec.msgpack.Decoder(Setup).decode
decode_order = msgspec.msgpack.Decoder[Order](Order).decode
decode_reply = msgspec.msgpack.Decoder[Reply](Reply).decode
decode_swap = msgspec.msgpack.Decoder(Swap).decode
