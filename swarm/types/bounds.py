"""Bounds and names of the numbers and texts in records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct, msgpack


def complete(module: Mapping[str, object]) -> None:
    """Have msgspec describe the records of a module, which calls this at its end with `globals()`.

    Otherwise msgspec does so when a record is first decoded. Another thread that decodes one of the same type meanwhile
    reads a description that is not filled in yet: the process dies with a segmentation fault.
    """
    for each in list(module.values()):
        if isinstance(each, type) and issubclass(each, Struct) and each.__module__ == module["__name__"]:
            msgpack.Decoder(each)


SCHEMA_VERSION = 2
"""The major version: nodes with different ones do not understand each other. What may be added without raising it is
in `docs/protocol.md`, "How it grows"."""

MAX_INTEGER = 2**63 - 1
MAX_NAME_CHARS = 256
MAX_STOPS = 64
MAX_TEMPERATURE = 1e6
MAX_COMPLETIONS = 256
MAX_TURNS = 64
"""The policy's turns in one completion."""
MAX_MESSAGES = 64
"""Messages of a conversation that a question continues."""
MAX_RESULT_CHARS = 8_192
"""Longest answer of a tool to a call."""
MAX_TOLD_TASKS = 256
"""Tasks in a peer's record: as many as a manifest may have."""
MAX_MULTIADDRS = 16
"""Addresses in a peer's record."""
MAX_MEASURED, MEASURED_BYTES = 64, 8
"""Authors whose groups' worth a peer states in its record, and bytes of each: seven name the author, one says it."""
MAX_TRUSTED = 64
"""Peers whose tools a run believes."""
ANSWER: Final = "answer"
"""Among a task's named rewards, the one that the task itself gives."""
ELEMENT_BYTES = 40
"""Memory of one list item and its slot."""

# msgspec checks these bounds when it decodes a record, and only then; NaN fails every bound.
Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Positive = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
Name = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
LogProb = Annotated[float, Meta(ge=-1e4, le=0)]
"""No sampler draws a less likely token; sums and squares over a whole group stay finite."""
RecordId = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""A BLAKE3 digest."""
Seconds = Annotated[float, Meta(ge=-1e11, le=1e11)]
"""Since 1970 or any other origin."""
Reward = Annotated[float, Meta(ge=-1e9, le=1e9)]
Fraction = Annotated[float, Meta(ge=0, le=1)]

HELD_OUT_STREAMS = 2**62
"""Question streams with this seed or above are for evaluation: no node trains on them."""
