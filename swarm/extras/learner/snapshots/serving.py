"""The common part of publisher and subscriber: stored snapshots, uploads of chunks, and the thread for other work.

Requests are answered on the network thread; chunks also on the threads of direct links, which have no rate limit.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from swarm.errors import Refusal, SnapshotError, TransportError
from swarm.extras.learner.snapshots.messages import (
    CHUNKS_PROTOCOL,
    DIRECT_PROTOCOL,
    ChunksRequest,
    Manifests,
    Signed,
    SnapshotAnnouncement,
    StatusReply,
    StatusRequest,
)
from swarm.extras.learner.snapshots.plan import Slot
from swarm.extras.learner.snapshots.store import Part, PartName, SnapshotStore, Stored
from swarm.kinds import extra, has_extra
from swarm.lru import LruDict
from swarm.net.bandwidth import MIN_RATE_BYTES_PER_S
from swarm.net.config import NetworkSettings
from swarm.net.guard import Counters
from swarm.net.roster import Progress
from swarm.net.services.requests import ANNOUNCE_PROTOCOL, ASK_PROTOCOL
from swarm.protocols import Transport

logger = logging.getLogger(__name__)

SPARE = 1
"""Peers fed beyond the plan: a node that lost its source is better served slowly than not at all."""
PATIENCE_S = 5.0
"""A stream ends when no chunk becomes available for this time, since its peer may be gone. A peer that has not taken a
chunk after this time, plus the time that the chunk may need, can be displaced."""
MAX_REPEATS = 3
"""How often a peer may fetch the same part: connections break, but endless repeats would starve others."""
MAX_COUNTED = 4_096
MAX_AHEAD = 1_024
MAX_FAILURES = 8
"""Consecutive failures of any kind after which the thread fails permanently, and so does the node."""
RETRY_S = 0.5


class DirectServer(Protocol):
    """Serves peers over separate sockets."""

    def ticket(self, peer_id: str, request: bytes) -> Struct:
        """A ticket for a link on which the peer's request is answered. Raises `LookupError` if there are none."""

    def close(self) -> None:
        """End all links."""


class DirectClient(Protocol):
    """Opens links to peers that offer them."""

    def stream(
        self, peer_id: str, request: bytes, timeout_s: float, max_bytes: int
    ) -> Generator[bytes, None, None] | None:
        """The bytes of a peer's answer; None if there is no direct link to it now. Raises `PeerUnreachable`."""


def direct_links() -> Any:
    """The extra with `DirectServer` and `DirectClient`; None if it is not installed."""
    return extra("direct") if has_extra("direct") else None


class SnapshotRole(Protocol):
    """A learner's or a worker's part in the distribution of snapshots."""

    def slot_for(self, peer_id: str, question: StatusRequest) -> Slot | None:
        """The asker's slot in the plan, if it has one. Called on the network thread."""

    def hear(self, peer_id: str, announcement: SnapshotAnnouncement) -> None:
        """The learner has announced a snapshot. Called on the network thread."""

    def begin(self) -> None:
        """Called once on the thread of snapshots."""

    def work(self) -> float:
        """Called repeatedly on the thread of snapshots; returns the seconds until the next call."""


class Serving:
    """One learner's snapshots, on disk and served to peers."""

    def __init__(
        self,
        transport: Transport,
        learner: str,
        folder: Path,
        settings: NetworkSettings,
        *,
        max_bytes: float = math.inf,
    ) -> None:
        """Snapshots of the peer `learner`, stored in `folder`; see `Manifests` for `max_bytes`.

        Raises `SnapshotError` if the run is not known.
        """
        run = transport.manifest()
        if run is None:
            raise SnapshotError("the run must be known before its snapshots can be served or fetched")
        self.run_id = run.run_id
        self.settings = settings.snapshots
        self.counters = Counters()
        self.store = SnapshotStore(folder, settings.snapshots.keep)
        self.manifests = Manifests(run.run_id, learner, max_bytes)
        self.uploads = Uploads(self.store, self.counters, settings.snapshots.fan_out)
        self._transport = transport
        self._direct: DirectServer | None = None
        if settings.upload_bytes_per_s is None and settings.snapshots.direct and (links := direct_links()) is not None:
            self._direct = links.DirectServer(
                self._send_chunks_directly, settings.listen, settings.snapshots.direct_port or 0, self.counters
            )
        self._closed = False

    def start(self, role: SnapshotRole) -> None:
        """Load what an earlier process stored, and start to answer. Raises `SnapshotError` for an unusable folder."""
        self.store.load(self.manifests.open)
        for version in self.store.versions():
            stored = self.store.get(version)
            assert stored is not None
            self.manifests.add(Signed(stored.sealed, stored.manifest))

        def answer_ask(remote: str, request: bytes) -> bytes:
            self._require_open()
            question = msgspec.msgpack.decode(request, type=StatusRequest)
            slot = role.slot_for(remote, question)
            return msgspec.msgpack.encode(self._status(question.version, slot))

        def answer_announcement(remote: str, request: bytes) -> bytes:
            self._require_open()
            role.hear(remote, msgspec.msgpack.decode(request, type=SnapshotAnnouncement))
            return b""

        self._transport.serve(ASK_PROTOCOL, answer_ask)
        self._transport.serve(ANNOUNCE_PROTOCOL, answer_announcement)
        self._transport.serve_stream(CHUNKS_PROTOCOL, self._send_chunks)
        self._transport.serve(DIRECT_PROTOCOL, self._answer_direct)

    def close(self) -> None:
        """Stop answering; stored snapshots stay for the next process."""
        self._closed = True
        if self._direct is not None:
            self._direct.close()

    def add_manifest(self, sealed: bytes) -> bool:
        """Accept a manifest; whether it is newer than all before. Raises `Refusal` if it is not validly signed."""
        try:
            manifest = self.manifests.open(sealed)
        except Refusal:
            self.counters.add("refused_manifests")
            raise
        return self.manifests.add(Signed(sealed, manifest))

    def verify(self) -> None:
        """Verify what an earlier process stored. Raises `OSError`."""
        for version in self.store.versions():
            if (stored := self.store.get(version)) is not None:
                stored.verify()

    def progress(self, source: str | None = None) -> Progress | None:
        """Progress of the newest snapshot, which `source` sends; None without one."""
        version = self.manifests.newest
        if version is None:
            return None
        stored = self.store.get(version)
        return Progress(version, stored.fraction if stored else 0.0, source, self.uploads.fed())

    def _status(self, version: int, slot: Slot | None) -> StatusReply:
        stored = self.store.get(version)
        return StatusReply(
            self.manifests.sealed_after(version),
            stored.whole.num_held if stored else 0,
            stored.change.num_held if stored and stored.change else 0,
            self.uploads.num_free,
            slot,
        )

    def _send_chunks(self, remote: str, request: bytes) -> Iterator[bytes | None]:
        self._require_open()
        return self.uploads.send_chunks(remote, request)

    def _send_chunks_directly(self, remote: str, request: bytes) -> Iterator[bytes | None]:
        """Like `_send_chunks`, but ends for a banned peer: the network closes its own connections only."""
        for chunk in self._send_chunks(remote, request):
            if self._transport.is_banned(remote):
                raise LookupError("this node has banned you")
            yield chunk

    def _answer_direct(self, remote: str, request: bytes) -> bytes:
        self._require_open()
        want = msgspec.msgpack.decode(request, type=ChunksRequest)  # refused here, where it is charged to the peer
        if self._direct is None:
            raise LookupError("this node has no direct links")
        # Encoded again, because it waits in memory: what else was in the request may be long.
        return msgspec.msgpack.encode(self._direct.ticket(remote, msgspec.msgpack.encode(want)))

    def _require_open(self) -> None:
        if self._closed:
            raise LookupError("this node has stopped serving snapshots")


class _Upload:
    """A stream that holds a slot."""

    def __init__(self) -> None:
        self.give_up_at = math.inf
        """When the peer should have taken its last chunk."""


class Uploads:
    """Sends chunks to other nodes, limited to the planned number at a time.

    When all slots are taken, a newcomer displaces a peer of lower rank, or one that does not take its chunks.
    """

    def __init__(
        self, store: SnapshotStore, counters: Counters, num_slots: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`num_slots` applies until there is a plan."""
        self._store = store
        self._counters = counters
        self._clock = clock
        self._lock = threading.Lock()
        self._fed: dict[str, _Upload] = {}
        """The current stream by peer; a newer stream of the same peer replaces it."""
        self._given = LruDict[tuple[str, int, PartName], int](MAX_COUNTED)
        """Chunks sent, by peer and part."""
        self._num_slots = num_slots
        self._first: Collection[str] = ()
        self._second: Collection[str] = ()
        self.max_ahead = MAX_AHEAD
        """A peer may wait for a version this much newer than the stored ones, since it may have heard of it first."""

    def follow(self, slot: Slot, second: Collection[str] = ()) -> None:
        """Follow a plan: its number of slots; peers that it names come first, then `second`, then all others."""
        self._num_slots = slot.num_children
        self._first, self._second = slot.feeds, second

    def _rank(self, peer: str) -> int:
        """A peer can be displaced by peers of higher rank."""
        return 2 if peer in self._first else 1 if peer in self._second else 0

    @property
    def num_free(self) -> int:
        """Free slots according to the plan; negative if more are taken."""
        return self._num_slots - len(self._fed)

    def fed(self) -> tuple[str, ...]:
        """The peers being fed."""
        with self._lock:
            return tuple(self._fed)

    def send_chunks(self, remote: str, request: bytes) -> Iterator[bytes | None]:
        """The requested chunks as they become available. Raises `LookupError`, `msgspec.MsgspecError`."""
        want = msgspec.msgpack.decode(request, type=ChunksRequest)
        # A peer that waits for a version unknown here holds no slot.
        part = yield from self._wait_for(want)
        upload = self._admit(remote)
        try:
            yield from self._chunks(remote, want, part, upload)
        finally:
            with self._lock:
                if self._fed.get(remote) is upload:
                    del self._fed[remote]

    def _wait_for(self, want: ChunksRequest) -> Generator[None, None, Part]:
        began = self._clock()
        while (part := self._part(want)) is None:
            newest = max(self._store.versions(), default=want.version)
            if self._clock() - began > PATIENCE_S or not 0 <= want.version - newest <= self.max_ahead:
                raise LookupError(f"version {want.version} is unknown here")
            yield None
        return part

    def _admit(self, remote: str) -> _Upload:
        """A slot for a peer. Raises `LookupError` if none is free and no peer can be displaced."""
        with self._lock:
            if remote not in self._fed and self.num_free <= -SPARE:
                now, rank = self._clock(), self._rank(remote)
                last = min(self._fed, key=lambda peer: (self._rank(peer), self._fed[peer].give_up_at), default=None)
                stalled = min(self._fed, key=lambda peer: self._fed[peer].give_up_at, default=None)
                if last is not None and self._rank(last) < rank:
                    del self._fed[last]
                elif stalled is not None and self._fed[stalled].give_up_at < now:
                    del self._fed[stalled]
                else:
                    raise LookupError("all upload slots are taken")
                self._counters.add("places_taken_back")
            upload = self._fed[remote] = _Upload()
            return upload

    def _chunks(self, remote: str, want: ChunksRequest, part: Part, upload: _Upload) -> Iterator[bytes | None]:
        """The part's chunks. All that are held are sent even if the version is removed meanwhile: a peer whose download
        takes longer than the version is kept would never have one."""
        index, num_chunks = want.start, len(part.chunks.chunk_ids)
        if index > num_chunks:
            raise LookupError(f"there is no chunk {index}")
        moved_at = self._clock()
        while index < num_chunks and self._fed.get(remote) is upload:
            if index < part.num_held:
                self._count_chunk(remote, want, part)
                chunk = part.read(index)
                upload.give_up_at = self._clock() + PATIENCE_S + len(chunk) / MIN_RATE_BYTES_PER_S
                yield chunk
                upload.give_up_at = math.inf
                self._counters.add("chunks_given")
                index += 1
                moved_at = self._clock()
            elif self._part(want) is not part:
                raise LookupError(f"version {want.version} was removed here")
            elif self._clock() - moved_at > PATIENCE_S:
                raise LookupError("no further chunk has arrived here")
            else:
                yield None

    def _count_chunk(self, remote: str, want: ChunksRequest, part: Part) -> None:
        """Count a chunk. Raises `LookupError` for a peer that has fetched this part too often."""
        key = (remote, want.version, want.part)
        with self._lock:
            num_given = self._given[key] = self._given.get(key, 0) + 1
        if num_given > MAX_REPEATS * len(part.chunks.chunk_ids):
            raise LookupError(f"this part was sent to you {MAX_REPEATS} times already")

    def _part(self, want: ChunksRequest) -> Part | None:
        """The requested part; None while its version is unknown here. Raises `LookupError` if it never will be held."""
        stored = self._store.get(want.version)
        if stored is None:
            return None
        part = stored.part(want.part)
        if part is None or not (part.complete or _is_coming(stored, want.part)):
            raise LookupError(f"the {want.part} of version {want.version} is not available here")
        return part


def _is_coming(stored: Stored, name: PartName) -> bool:
    return stored.taking == name and not stored.complete


class SnapshotThread:
    """Runs the work when it is due; only a permanent error ends it."""

    def __init__(self, serving: Serving, role: SnapshotRole) -> None:
        self._serving = serving
        self._role = role
        self._num_failures = 0
        self._wake = threading.Event()
        self.closing = threading.Event()
        """Set when the thread must stop."""
        self.failure: str | None = None
        """Reason of a permanent failure."""
        self._thread = threading.Thread(target=self._run, name="swarm-snapshots", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Run the work now."""
        self._wake.set()

    def close(self) -> None:
        """Stop the thread and wait for it."""
        self.closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def require_running(self) -> None:
        """Raises `SnapshotError` after a permanent failure."""
        if self.failure is not None:
            raise SnapshotError(self.failure)

    def _run(self) -> None:
        try:
            self._role.begin()
            while not self.closing.is_set():
                self._wake.clear()
                self._wake.wait(self._work_or_rest())
        except Exception as error:
            # Last resort: the node reads the failure and stops.
            logger.exception("the snapshot thread failed")
            self.failure = f"the snapshot thread failed: {error!r}"

    def _work_or_rest(self) -> float:
        """Run the work; seconds to wait."""
        try:
            rest_s = self._role.work()
            self._num_failures = 0
            return rest_s
        except OSError as error:
            self._serving.counters.add("disk_errors")
            logger.error(
                "snapshots cannot be written: %s; keeping only the newest and trying again, free disk space", error
            )
            self._serving.store.make_room()
            return self._serving.settings.poll_s
        except TransportError as error:
            logger.debug("the network is down: %s", error)
            return RETRY_S
        except SnapshotError:
            raise
        except Exception:
            # Peers' input must not end this thread; an error of this node itself persists and reaches the limit.
            self._num_failures += 1
            if self._num_failures == MAX_FAILURES:
                raise
            self._serving.counters.add("relay_errors")
            logger.exception("the snapshot thread continues after an error")
            return RETRY_S
