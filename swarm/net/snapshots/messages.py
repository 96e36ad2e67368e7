"""What nodes send each other about snapshots, beside the chunks themselves.

| protocol | request | answer |
| --- | --- | --- |
| ask | `Ask` | `News`: a manifest the asker lacks, what is held here, a place if one is wanted |
| announce | `Announcement` | nothing; sent by the learner when there is a new snapshot |
| chunks | `Want` | a part's chunks from one on, each as soon as it is held here and verified |
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from swarm.errors import Refusal
from swarm.net.records.wire import MAX_SNAPSHOT_CHUNKS, MAX_SNAPSHOT_MANIFEST_BYTES
from swarm.net.snapshots.plan import MAX_SOURCES, Limits, PeerId, Place
from swarm.net.snapshots.store import PartName
from swarm.protocols import RequestTransport
from swarm.reasons import Reason
from swarm.types import MAX_INTEGER

ASK_PROTOCOL = "/swarm/snapshots/ask/1"
ANNOUNCE_PROTOCOL = "/swarm/snapshots/announce/1"
CHUNKS_PROTOCOL = "/swarm/snapshots/chunks/1"

Version = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
NumChunks = Annotated[int, Meta(ge=0, le=MAX_SNAPSHOT_CHUNKS)]
Sealed = Annotated[bytes, Meta(max_length=MAX_SNAPSHOT_MANIFEST_BYTES)]


class Ask(Struct, frozen=True, array_like=True):
    """What is there, and what does the other hold of the newest version that the asker knows?"""

    version: Annotated[int, Meta(ge=-1, le=MAX_INTEGER)]
    """-1: the asker knows of none."""
    limits: Limits | None = None
    """Of a worker that wants a place in the learner's plan."""
    failed: Annotated[tuple[PeerId, ...], Meta(max_length=MAX_SOURCES)] = ()
    """Sources of its place that have fed it nothing though they could."""


class News(Struct, frozen=True, array_like=True):
    """The answer to `Ask`."""

    sealed: Sealed
    """Manifest of the newest version known here, if the asker does not know it."""
    whole: NumChunks
    change: NumChunks
    """Chunks held of the two parts of the asker's version."""
    num_free: Annotated[int, Meta(ge=-(2**16), le=2**16)]
    """How many more could be fed as planned; below 0 nobody is taken on."""
    place: Place | None = None
    """In the broadcast of the newest version; from the learner only."""

    def num_held(self, name: PartName) -> int:
        """Chunks held of one part of the asker's version."""
        return self.whole if name == "whole" else self.change


class Announcement(Struct, frozen=True, array_like=True):
    """A new snapshot, and a worker's place in its broadcast."""

    sealed: Sealed
    place: Place


class Want(Struct, frozen=True, array_like=True):
    """Asks for a part's chunks from one on."""

    version: Version
    part: PartName
    start: NumChunks


def ask(transport: RequestTransport, peer_id: str, question: Ask, timeout_s: float) -> News:
    """A peer's answer. Raises `PeerUnreachable`, `Refusal` when it cannot be read."""
    answer = transport.request(peer_id, ASK_PROTOCOL, msgspec.msgpack.encode(question), timeout_s)
    try:
        return msgspec.msgpack.decode(answer, type=News)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(Reason.MALFORMED, str(error)) from error
