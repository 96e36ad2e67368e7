"""Messages between a node and its judge's process, as msgpack on a socket."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from swarm.types import complete

MAX_REPLY_BYTES = 2**22
MAX_ERROR_CHARS = 300


class Query(Struct, frozen=True):
    """One question to the judge, and what its reply may say."""

    prompt: str
    label: Literal["SCORE", "BETTER"]
    """What precedes the number in the reply's last line."""
    most: int
    """The number is in [0, most]."""
    max_new_tokens: int
    temperature: float


class Setup(Struct, frozen=True):
    """The first message."""

    settings: bytes
    """JSON of `JudgeSettings`."""


class Ready(Struct, frozen=True, tag="ready"):
    """The judge can be asked."""


class Broken(Struct, frozen=True, tag="broken"):
    """The judge cannot be set up."""

    error: str


class Ratings(Struct, frozen=True, tag="ratings"):
    """The replies to a list of queries: all that comes back from what the judge has said."""

    numbers: tuple[int | None, ...]
    """In the order of the queries; None for one without a usable reply."""
    tokens: int = 0
    """Tokens of prompts and replies."""
    unanswered: int = 0
    """Queries that got no reply at all."""
    error: str = ""
    """What was wrong with one of them."""


Reply = Ready | Broken | Ratings

encode = msgspec.msgpack.Encoder().encode
decode_setup = msgspec.msgpack.Decoder(Setup).decode
decode_queries = msgspec.msgpack.Decoder(tuple[Query, ...]).decode
decode_reply = msgspec.msgpack.Decoder[Reply](Reply).decode

complete(globals())
