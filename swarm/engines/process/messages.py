"""What a `ProcessEngine` and its process say to each other, as msgpack on two sockets: work, and changes of weights."""

from __future__ import annotations

import msgspec

from swarm.errors import EngineError, OutOfMemory, SamplingError
from swarm.types import Answers, Sampling

RAISED = {error.__name__: error for error in (EngineError, OutOfMemory, SamplingError)}
"""What the process hands on instead of ending with it."""


class Setup(msgspec.Struct, frozen=True):
    """First message on the socket for work."""

    policy: bytes
    """JSON of `PolicySettings`."""
    generation: bytes
    """JSON of `GenerationSettings`."""
    shapes: dict[str, list[int]]
    """Of the weights, in the order they have in shared memory."""


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Stream the answers to these prompts, then an `End`."""

    prompts: list[str]
    num_completions: int
    sampling: Sampling
    seed: int


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Give up what is being generated; ignored when nothing is."""


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """One prompt's answers."""

    index: int
    answers: Answers


class End(msgspec.Struct, frozen=True, tag="end"):
    """Nothing more will come of what was asked."""

    error: str = ""
    """Name of one of `RAISED`; empty: all answers were sent, or generation was stopped."""
    message: str = ""


class Swap(msgspec.Struct, frozen=True):
    """Take the weights in shared memory as this version; the answer is the version, once they have been copied."""

    version: int


Order = Ask | Stop
Reply = Answered | End

encode = msgspec.msgpack.Encoder().encode
decode_setup = msgspec.msgpack.Decoder(Setup).decode
decode_order = msgspec.msgpack.Decoder[Order](Order).decode
decode_reply = msgspec.msgpack.Decoder[Reply](Reply).decode
decode_swap = msgspec.msgpack.Decoder(Swap).decode
