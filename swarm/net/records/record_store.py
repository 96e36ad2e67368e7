"""Recent records that a node holds for others, by content id; bounded in count, bytes and age, fair between owners."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated

from blake3 import blake3
from msgspec import Meta, Struct, field

from swarm.types import Count

RECORD_ID_BYTES = 16
SEEN_RECORDS = 65_536
"""Ids remembered after their records are removed, so that a circulating record is not accepted twice."""


def record_id(record: bytes | memoryview) -> bytes:
    """Id of a record: a 16-byte digest of its bytes."""
    return blake3(record).digest(length=RECORD_ID_BYTES)


class Held(Struct, frozen=True, array_like=True):
    """An available record."""

    record_id: Annotated[bytes, Meta(min_length=RECORD_ID_BYTES, max_length=RECORD_ID_BYTES)]
    num_bytes: Count
    age_s: Annotated[float, Meta(ge=0, le=1e9)]
    """Seconds since publication, as estimated by the holder. The age is passed on, so every peer forgets a record in
    time.
    """
    offered: bool = False
    """Whether the record was offered: who knows offers fetches it only if it wants it."""


class _Entry(Struct, frozen=True):
    record: bytes
    published_at: float
    listed: bool
    owner: str
    offered: bool


class _Owned(Struct):
    """Records of one owner."""

    names: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    num_bytes: int = 0


class RecordStore:
    """Thread-safe store of recent records; remembers more ids than it holds records."""

    def __init__(
        self, max_records: int, max_bytes: int, max_age_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Empty, with its three limits."""
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._by_owner: dict[str, _Owned] = {}
        self._num_bytes = 0
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def mark_seen(self, name: bytes) -> bool:
        """Mark an id as seen without storing a record, so it is not requested; False if it was known."""
        with self._lock:
            return self._mark_seen(name)

    def _mark_seen(self, name: bytes) -> bool:
        if name in self._seen:
            self._seen.move_to_end(name)
            return False
        self._seen[name] = None
        if len(self._seen) > SEEN_RECORDS:
            self._seen.popitem(last=False)
        return True

    def add(
        self, record: bytes, age_s: float = 0.0, *, listed: bool = True, owner: str = "", offered: bool = False
    ) -> bool:
        """Store a record; False if its id was known. An unlisted record is only given to peers that know its id.

        The oldest records of the owner with the most make room. A record that is too large or too old is marked as seen
        but not stored.
        """
        name = record_id(record)
        with self._lock:
            now = self._clock()
            if not self._mark_seen(name):
                return False
            if len(record) <= self._max_bytes and 0 <= age_s < self._max_age_s:
                self._entries[name] = _Entry(record, now - age_s, listed, owner, offered)
                self._num_bytes += len(record)
                owned = self._by_owner.setdefault(owner, _Owned())
                owned.names[name] = None
                owned.num_bytes += len(record)
            self._make_room(now)
            return True

    def has_seen(self, name: bytes) -> bool:
        """Whether a record with this id was seen, as far as ids are remembered."""
        with self._lock:
            return name in self._seen

    def get(self, name: bytes) -> bytes | None:
        """The record with this id; None if it is not held."""
        with self._lock:
            self._make_room(self._clock())
            entry = self._entries.get(name)
            return entry.record if entry and self._clock() - entry.published_at < self._max_age_s else None

    def listing(self, max_age_s: float, min_age_s: float, most: int) -> list[Held]:
        """Listed records between the two ages, latest arrival first."""
        with self._lock:
            now = self._clock()
            self._make_room(now)
            oldest = min(max_age_s, self._max_age_s)
            held: list[Held] = []
            for name, entry in reversed(self._entries.items()):
                if len(held) >= most:
                    break
                if entry.listed and min_age_s <= now - entry.published_at < oldest:
                    held.append(Held(name, len(entry.record), now - entry.published_at, entry.offered))
            return held

    @property
    def num_bytes(self) -> int:
        """Total bytes held."""
        with self._lock:
            return self._num_bytes

    def __len__(self) -> int:
        """Number of records held."""
        with self._lock:
            return len(self._entries)

    def _make_room(self, now: float) -> None:
        # Expires in order of arrival: a record that arrived late may stay past its age, but is not given out.
        while self._entries:
            name, oldest = next(iter(self._entries.items()))
            if now - oldest.published_at < self._max_age_s:
                break
            self._remove(name)
        while len(self._entries) > self._max_records:
            self._remove_of(max(self._by_owner.values(), key=lambda owned: len(owned.names)))
        while self._num_bytes > self._max_bytes:
            self._remove_of(max(self._by_owner.values(), key=lambda owned: owned.num_bytes))

    def _remove_of(self, owned: _Owned) -> None:
        self._remove(next(iter(owned.names)))

    def _remove(self, name: bytes) -> None:
        entry = self._entries.pop(name)
        owned = self._by_owner[entry.owner]
        del owned.names[name]
        owned.num_bytes -= len(entry.record)
        if not owned.names:
            del self._by_owner[entry.owner]
        self._num_bytes -= len(entry.record)
