"""What a node answers others about snapshots, and how many it feeds.

| protocol | request | answer |
| --- | --- | --- |
| ask | `Ask` | `News`: a manifest the asker lacks, what is held here, a place if one is wanted |
| announce | `Announcement` | nothing; sent by the learner when there is a new snapshot |
| chunks | `Want` | a part's chunks from one on, each as soon as it is held here and verified |

All of it runs on the network thread.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from swarm.net.bandwidth import MIN_RATE_BYTES_PER_S
from swarm.net.counters import Counters
from swarm.net.records.wire import MAX_SNAPSHOT_CHUNKS, MAX_SNAPSHOT_MANIFEST_BYTES
from swarm.net.snapshots.plan import MAX_SOURCES, Limits, PeerId, Place
from swarm.net.snapshots.store import Part, PartName, SnapshotStore, Stored
from swarm.types import MAX_INTEGER

ASK_PROTOCOL = "/swarm/snapshots/ask/1"
ANNOUNCE_PROTOCOL = "/swarm/snapshots/announce/1"
CHUNKS_PROTOCOL = "/swarm/snapshots/chunks/1"
SPARE = 1
"""So many more than planned may be fed: who has lost his source is better served slowly than not."""
PATIENCE_S = 5.0
"""A stream for which nothing has come for so long is ended: nobody may be listening any more. And one whose peer has
taken no chunk for so long, beside the time that the chunk may need, makes room for another."""
MAX_HELPINGS = 3
"""A part is given so often to one peer: connections break, but who wants it for ever keeps others from it."""
MAX_COUNTED = 4_096
REACH = 1_024

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


class Announcement(Struct, frozen=True, array_like=True):
    """A new snapshot, and a worker's place in its broadcast."""

    sealed: Sealed
    place: Place


class Want(Struct, frozen=True, array_like=True):
    """Asks for a part's chunks from one on."""

    version: Version
    part: PartName
    start: NumChunks


class _Meal:
    """One stream that has a place."""

    def __init__(self) -> None:
        self.give_up_at = math.inf
        """Until when its peer is to have taken the chunk that it was given last."""


class Kitchen:
    """Feeds others with chunks, no more of them at a time than planned.

    When all places are taken, whom the plan does not place before the newcomer makes room for it, and so does who
    takes nothing of what it is given.
    """

    def __init__(
        self, store: SnapshotStore, counters: Counters, num_places: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`num_places` holds until a plan says otherwise."""
        self._store = store
        self._counters = counters
        self._clock = clock
        self._lock = threading.Lock()
        self._fed: dict[str, _Meal] = {}
        """By peer: the stream that feeds it; a newer stream of the same peer takes its place."""
        self._given: Counter[tuple[str, int, PartName]] = Counter()
        """Chunks given of each part, by peer."""
        self.num_places = num_places
        self.reach = REACH
        """A version is waited for that is so much newer than those here: others may have heard of it first."""
        self.rank: Callable[[str], int] = lambda peer: 0
        """Who has the lower one makes room for who has the higher."""

    @property
    def num_free(self) -> int:
        """Places that nobody has; below 0 when more are fed than planned."""
        return self.num_places - len(self._fed)

    def fed(self) -> tuple[str, ...]:
        """Who is being fed."""
        with self._lock:
            return tuple(self._fed)

    def give(self, remote: str, request: bytes) -> Iterator[bytes | None]:
        """Chunks as they become available. Raises `LookupError`, `msgspec.MsgspecError`."""
        want = msgspec.msgpack.decode(request, type=Want)
        # Who waits for a version that is not known here takes nobody's place.
        yield from self._wait_for(want)
        meal = self._seat(remote)
        try:
            yield from self._chunks(remote, want, meal)
        finally:
            with self._lock:
                if self._fed.get(remote) is meal:
                    del self._fed[remote]

    def _wait_for(self, want: Want) -> Iterator[None]:
        began = self._clock()
        while self._part(want) is None:
            newest = max(self._store.versions(), default=want.version)
            if self._clock() - began > PATIENCE_S or not 0 <= want.version - newest <= self.reach:
                raise LookupError(f"nothing is known of {want.version} here")
            yield None

    def _seat(self, remote: str) -> _Meal:
        """A place for a peer. Raises `LookupError` when nobody has to make room for it."""
        with self._lock:
            if remote not in self._fed and self.num_free <= -SPARE:
                now, rank = self._clock(), self.rank(remote)
                last = min(self._fed, key=lambda peer: (self.rank(peer), self._fed[peer].give_up_at), default=None)
                stalled = min(self._fed, key=lambda peer: self._fed[peer].give_up_at, default=None)
                if last is not None and self.rank(last) < rank:
                    del self._fed[last]
                elif stalled is not None and self._fed[stalled].give_up_at < now:
                    del self._fed[stalled]
                else:
                    raise LookupError("busy, ask others")
                self._counters.add("places_taken_back")
            meal = self._fed[remote] = _Meal()
            return meal

    def _chunks(self, remote: str, want: Want, meal: _Meal) -> Iterator[bytes | None]:
        index = want.start
        moved_at = self._clock()
        while self._fed.get(remote) is meal:
            part = self._part(want)
            if part is None:
                raise LookupError(f"{want.version} is here no more")
            if index > len(part.chunks.chunk_ids):
                raise LookupError(f"there is no chunk {index}")
            if index == len(part.chunks.chunk_ids):
                return
            if index < part.num_held:
                self._help_to(remote, want, part)
                chunk = part.read(index)
                meal.give_up_at = self._clock() + PATIENCE_S + len(chunk) / MIN_RATE_BYTES_PER_S
                yield chunk
                meal.give_up_at = math.inf
                self._counters.add("chunks_given")
                index += 1
                moved_at = self._clock()
            elif self._clock() - moved_at > PATIENCE_S:
                raise LookupError("nothing comes here either")
            else:
                yield None

    def _help_to(self, remote: str, want: Want, part: Part) -> None:
        """Count a chunk. Raises `LookupError` for a peer that has had enough of this part."""
        self._given[remote, want.version, want.part] += 1
        if self._given[remote, want.version, want.part] > MAX_HELPINGS * len(part.chunks.chunk_ids):
            raise LookupError("it was given to you before")
        if len(self._given) > MAX_COUNTED:
            here = set(self._store.versions())
            counts = {key: count for key, count in self._given.items() if key[1] in here}
            self._given = Counter(dict(list(counts.items())[-MAX_COUNTED // 2 :]))

    def _part(self, want: Want) -> Part | None:
        """The file that is wanted; None while its version is not known here. Raises `LookupError` if it never will."""
        stored = self._store.get(want.version)
        if stored is None:
            return None
        part = stored.part(want.part)
        if part is None or not (part.complete or _is_coming(stored, want.part)):
            raise LookupError(f"the {want.part} of {want.version} is not to be had here")
        return part


def _is_coming(stored: Stored, name: PartName) -> bool:
    return stored.taking == name and not stored.complete
