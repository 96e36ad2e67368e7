"""Messages about snapshots, apart from the chunks.

| protocol | request | answer |
| --- | --- | --- |
| ask | `StatusRequest` | `StatusReply`: a manifest that the asker lacks, chunks held here, a place if one is wanted |
| announce | `SnapshotAnnouncement` | nothing; sent by the learner for a new snapshot |
| chunks | `ChunksRequest` | a part's chunks from an index on, each as soon as it is held here and verified |
| direct | `ChunksRequest` | a `Ticket` for the same answer over a direct link |
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from swarm.errors import Refusal
from swarm.net.records.wire import MAX_SNAPSHOT_CHUNKS, MAX_SNAPSHOT_MANIFEST_BYTES
from swarm.net.snapshots.plan import MAX_SOURCES, LinkLimits, PeerId, Place
from swarm.net.snapshots.store import PartName
from swarm.protocols import RequestTransport
from swarm.reasons import Reason
from swarm.types import MAX_INTEGER, complete

ASK_PROTOCOL = "/swarm/snapshots/ask/1"
ANNOUNCE_PROTOCOL = "/swarm/snapshots/announce/1"
CHUNKS_PROTOCOL = "/swarm/snapshots/chunks/1"
DIRECT_PROTOCOL = "/swarm/snapshots/direct/1"

Version = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
NumChunks = Annotated[int, Meta(ge=0, le=MAX_SNAPSHOT_CHUNKS)]
Sealed = Annotated[bytes, Meta(max_length=MAX_SNAPSHOT_MANIFEST_BYTES)]


class StatusRequest(Struct, frozen=True, array_like=True):
    """Asks for news, and for the chunks held of the newest version that the asker knows."""

    version: Annotated[int, Meta(ge=-1, le=MAX_INTEGER)]
    """The newest known version; -1: none."""
    limits: LinkLimits | None = None
    """Rates of a worker that wants a place in the learner's plan."""
    failed: Annotated[tuple[PeerId, ...], Meta(max_length=MAX_SOURCES)] = ()
    """Planned sources that delivered nothing although they could."""


class StatusReply(Struct, frozen=True, array_like=True):
    """The answer to `StatusRequest`."""

    sealed: Sealed
    """Manifest of the newest version known here, if it is newer than the asker's."""
    whole: NumChunks
    change: NumChunks
    """Held chunks of the two parts of the asker's version."""
    num_free: Annotated[int, Meta(ge=-(2**16), le=2**16)]
    """Free places according to the plan; below 0 no further peer is accepted."""
    place: Place | None = None
    """The asker's place in the broadcast of the newest version; from the learner only."""

    def num_held(self, name: PartName) -> int:
        """Held chunks of one part of the asker's version."""
        return self.whole if name == "whole" else self.change


class SnapshotAnnouncement(Struct, frozen=True, array_like=True):
    """A new snapshot, and the worker's place in its broadcast."""

    sealed: Sealed
    place: Place


class ChunksRequest(Struct, frozen=True, array_like=True):
    """Requests a part's chunks from an index on."""

    version: Version
    part: PartName
    start: NumChunks


def request_status(transport: RequestTransport, peer_id: str, question: StatusRequest, timeout_s: float) -> StatusReply:
    """A peer's answer. Raises `PeerUnreachable`, and `Refusal` if it cannot be decoded."""
    answer = transport.request(peer_id, ASK_PROTOCOL, msgspec.msgpack.encode(question), timeout_s)
    try:
        return msgspec.msgpack.decode(answer, type=StatusReply)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(Reason.MALFORMED, str(error)) from error


complete(globals())
