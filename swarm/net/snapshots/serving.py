"""What a node answers others about snapshots, and how many it feeds.

| protocol | request | answer |
| --- | --- | --- |
| ask | `Ask` | `News`: a manifest the asker lacks, what is held here, a place if one is wanted |
| announce | `Announcement` | nothing; sent by the learner when there is a new snapshot |
| chunks | `Want` | a part's chunks from one on, each as soon as it is held here and verified |

All of it runs on the network thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import msgspec
from msgspec import Struct

from swarm.net.counters import Counters
from swarm.net.snapshots.plan import Limits, Place
from swarm.net.snapshots.store import Part, PartName, SnapshotStore, Stored

ASK_PROTOCOL = "/swarm/snapshots/ask/1"
ANNOUNCE_PROTOCOL = "/swarm/snapshots/announce/1"
CHUNKS_PROTOCOL = "/swarm/snapshots/chunks/1"
SPARE = 1
"""So many more than planned may be fed: who has lost his source is better served slowly than not."""
PATIENCE_S = 5.0
"""A stream for which nothing has come for so long is ended: nobody may be listening any more."""


class Ask(Struct, frozen=True, array_like=True):
    """What is there, and what does the other hold of the newest version that the asker knows?"""

    version: int
    """-1: the asker knows of none."""
    limits: Limits | None = None
    """Of a worker that wants a place in the learner's plan."""


class News(Struct, frozen=True, array_like=True):
    """The answer to `Ask`."""

    sealed: bytes
    """Manifest of the newest version known here, if the asker does not know it."""
    whole: int
    change: int
    """Chunks held of the two parts of the asker's version."""
    num_free: int
    """How many more could be fed as planned; below 0 nobody is taken on."""
    place: Place | None = None
    """In the broadcast of the newest version; from the learner only."""


class Announcement(Struct, frozen=True, array_like=True):
    """A new snapshot, and a worker's place in its broadcast."""

    sealed: bytes
    place: Place


class Want(Struct, frozen=True, array_like=True):
    """Asks for a part's chunks from one on."""

    version: int
    part: PartName
    start: int


class Kitchen:
    """Feeds others with chunks, no more of them at a time than planned."""

    def __init__(
        self, store: SnapshotStore, counters: Counters, num_places: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`num_places` holds until a plan says otherwise."""
        self._store = store
        self._counters = counters
        self._clock = clock
        self._lock = threading.Lock()
        self._fed: dict[str, object] = {}
        """By peer: a token of the stream that feeds it; a newer stream of the same peer takes its place."""
        self.num_places = num_places

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
        token = object()
        with self._lock:
            if remote not in self._fed and self.num_free <= -SPARE:
                raise LookupError("busy, ask others")
            self._fed[remote] = token
        try:
            yield from self._chunks(want, lambda: self._fed.get(remote) is token)
        finally:
            with self._lock:
                if self._fed.get(remote) is token:
                    del self._fed[remote]

    def _chunks(self, want: Want, wanted: Callable[[], bool]) -> Iterator[bytes | None]:
        index = want.start
        moved_at = self._clock()
        while wanted():
            part = self._part(want)
            if part is not None and not 0 <= index <= len(part.chunks.chunk_ids):
                raise LookupError(f"there is no chunk {index}")
            if part is not None and index == len(part.chunks.chunk_ids):
                return
            if part is not None and index < part.num_held:
                yield part.read(index)
                self._counters.add("chunks_given")
                index += 1
                moved_at = self._clock()
            elif self._clock() - moved_at > PATIENCE_S:
                raise LookupError("nothing comes here either")
            else:
                yield None

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
