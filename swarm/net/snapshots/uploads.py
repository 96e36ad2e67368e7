"""Uploads of chunks to other nodes: number of streams, their priority, and when a stream is ended.

It runs on the network thread and on those of direct links.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator

import msgspec

from swarm.net.bandwidth import MIN_RATE_BYTES_PER_S
from swarm.net.counters import Counters
from swarm.net.snapshots.messages import ChunksRequest
from swarm.net.snapshots.plan import Place
from swarm.net.snapshots.store import Part, PartName, SnapshotStore, Stored

SPARE = 1
"""Peers fed beyond the plan: a node that lost its source is better served slowly than not at all."""
PATIENCE_S = 5.0
"""A stream ends when no chunk becomes available for this time, since its peer may be gone. A peer that has not taken a
chunk after this time, plus the time that the chunk may need, can be displaced."""
MAX_REPEATS = 3
"""How often a peer may fetch the same part: connections break, but endless repeats would starve others."""
MAX_COUNTED = 4_096
MAX_AHEAD = 1_024


class _Upload:
    """A stream that holds a place."""

    def __init__(self) -> None:
        self.give_up_at = math.inf
        """When the peer should have taken its last chunk."""


class Uploads:
    """Sends chunks to other nodes, limited to the planned number at a time.

    When all places are taken, a newcomer displaces a peer of lower rank, or one that does not take its chunks.
    """

    def __init__(
        self, store: SnapshotStore, counters: Counters, num_places: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`num_places` applies until there is a plan."""
        self._store = store
        self._counters = counters
        self._clock = clock
        self._lock = threading.Lock()
        self._fed: dict[str, _Upload] = {}
        """The current stream by peer; a newer stream of the same peer replaces it."""
        self._given: Counter[tuple[str, int, PartName]] = Counter()
        """Chunks sent, by peer and part."""
        self._num_places = num_places
        self._first: Collection[str] = ()
        self._second: Collection[str] = ()
        self.max_ahead = MAX_AHEAD
        """A peer may wait for a version this much newer than the stored ones, since it may have heard of it first."""

    def follow(self, place: Place, second: Collection[str] = ()) -> None:
        """Follow a plan: its number of places; peers that it names come first, then `second`, then all others."""
        self._num_places = place.num_children
        self._first, self._second = place.feeds, second

    def _rank(self, peer: str) -> int:
        """A peer can be displaced by peers of higher rank."""
        return 2 if peer in self._first else 1 if peer in self._second else 0

    @property
    def num_free(self) -> int:
        """Free places according to the plan; negative if more are taken."""
        return self._num_places - len(self._fed)

    def fed(self) -> tuple[str, ...]:
        """The peers being fed."""
        with self._lock:
            return tuple(self._fed)

    def send_chunks(self, remote: str, request: bytes) -> Iterator[bytes | None]:
        """The requested chunks as they become available. Raises `LookupError`, `msgspec.MsgspecError`."""
        want = msgspec.msgpack.decode(request, type=ChunksRequest)
        # A peer that waits for a version unknown here holds no place.
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
        """A place for a peer. Raises `LookupError` if none is free and nobody can be displaced."""
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
        with self._lock:
            self._given[remote, want.version, want.part] += 1
            if self._given[remote, want.version, want.part] > MAX_REPEATS * len(part.chunks.chunk_ids):
                raise LookupError(f"this part was sent to you {MAX_REPEATS} times already")
            if len(self._given) > MAX_COUNTED:
                here = set(self._store.versions())
                counts = {key: count for key, count in self._given.items() if key[1] in here}
                self._given = Counter(dict(list(counts.items())[-MAX_COUNTED // 2 :]))

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
