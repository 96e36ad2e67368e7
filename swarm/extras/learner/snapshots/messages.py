"""Messages about snapshots, apart from the chunks, and the signed manifests known here.

| protocol | request | answer |
| --- | --- | --- |
| ask | `StatusRequest` | `StatusReply`: a manifest that the asker lacks, chunks held here, a slot if one is wanted |
| announce | `SnapshotAnnouncement` | nothing; sent by the learner for a new snapshot |
| chunks | `ChunksRequest` | a part's chunks from an index on, each as soon as it is held here and verified |
| direct | `ChunksRequest` | a `Ticket` for the same answer over a direct link |
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct

from swarm.errors import Refusal
from swarm.extras.learner.snapshots.plan import MAX_SOURCES, LinkLimits, PeerId, Slot
from swarm.extras.learner.snapshots.store import PartName
from swarm.net.records.wire import MAX_SNAPSHOT_CHUNKS, MAX_SNAPSHOT_MANIFEST_BYTES, open_snapshot
from swarm.net.services.requests import ASK_PROTOCOL
from swarm.protocols import RequestTransport
from swarm.reasons import Reason
from swarm.types import MAX_INTEGER, SnapshotManifest, complete

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
    """Rates of a worker that wants a slot in the learner's plan."""
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
    """Free slots according to the plan; below 0 no further peer is accepted."""
    slot: Slot | None = None
    """The asker's slot in the broadcast of the newest version; from the learner only."""

    def num_held(self, name: PartName) -> int:
        """Held chunks of one part of the asker's version."""
        return self.whole if name == "whole" else self.change


class SnapshotAnnouncement(Struct, frozen=True, array_like=True):
    """A new snapshot, and the worker's slot in its broadcast."""

    sealed: Sealed
    slot: Slot


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


class Signed(NamedTuple):
    """A manifest, and its signed bytes, which other peers can verify."""

    sealed: bytes
    manifest: SnapshotManifest


class Manifests:
    """Manifests from the version being fetched onwards. Thread-safe."""

    def __init__(self, run_id: str, learner: str, max_bytes: float = math.inf) -> None:
        """Snapshots larger than `max_bytes` are refused: otherwise a learner could fill the disk."""
        self._run_id = run_id
        self._learner = learner
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._known: dict[int, Signed] = {}
        """Manifests by version, oldest first."""
        self._newest: int | None = None

    @property
    def newest(self) -> int | None:
        """The newest version that the learner has signed."""
        return self._newest

    def open(self, sealed: bytes) -> SnapshotManifest:
        """The manifest, after its signature is verified. Raises `Refusal`."""
        manifest = open_snapshot(sealed, self._run_id, self._learner)
        num_bytes = max(part.num_bytes for part in (manifest.whole, manifest.change) if part is not None)
        if num_bytes > self._max_bytes:
            raise Refusal(
                Reason.OVERSIZED, f"a snapshot of this model has at most {self._max_bytes:.0f} bytes, got {num_bytes}"
            )
        return manifest

    def add(self, signed: Signed) -> bool:
        """Add an opened manifest if it is newer than all others; whether it is."""
        version = signed.manifest.version
        with self._lock:
            if self._newest is not None and version <= self._newest:
                return False
            self._known[version] = signed
            self._newest = version
            return True

    def replace_all(self, signed: Signed) -> None:
        """Keep this manifest only: the learner declares it the newest."""
        with self._lock:
            self._known = {signed.manifest.version: signed}
            self._newest = signed.manifest.version

    def forget_before(self, version: int) -> None:
        """Drop the manifests of older versions."""
        with self._lock:
            self._known = {each: self._known[each] for each in self._known if each >= version}

    def known(self) -> dict[int, Signed]:
        """Manifests by version, oldest first."""
        with self._lock:
            return dict(self._known)

    def sealed_after(self, version: int) -> bytes:
        """The newest manifest, as signed, if its version is above this one; else empty."""
        with self._lock:
            newest = self._newest
            return self._known[newest].sealed if newest is not None and newest > version else b""


def next_version(
    known: Mapping[int, SnapshotManifest], have: int, current: int | None, finish_behind: float
) -> int | None:
    """The version to fetch next among the known ones; None if the newest is complete here.

    `have` is the newest complete version. `current` is being fetched; it is finished first unless `finish_behind` newer
    versions are known. Otherwise the result is the newest version, or the first step to it if the deltas from `have`
    take fewer bytes than the whole.
    """
    missing = [version for version in known if version > have]
    if not missing:
        return None
    if current in missing and sum(version > current for version in missing) < finish_behind:
        return current
    newest = step = max(missing)
    num_bytes = 0
    while (change := known[step].change) is not None:
        num_bytes += change.num_bytes
        parent = known[step].parent
        if parent == have and num_bytes < known[newest].whole.num_bytes:
            return step
        if parent not in missing:
            break
        step = parent
    return newest


complete(globals())
