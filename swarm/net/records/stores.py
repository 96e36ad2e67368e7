"""Bounded stores of records, fair between their owners: those held for others, and those on the way to the round."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Annotated, Generic, TypeVar

from blake3 import blake3
from msgspec import Meta, Struct

from swarm.fair_store import FairStore
from swarm.lru import LruDict
from swarm.types import Count

RECORD_ID_BYTES = 16
SEEN_RECORDS = 65_536
"""Ids remembered after their records are removed, so that a circulating record is not accepted twice."""
T = TypeVar("T")


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
    offered: bool


class RecordStore:
    """Thread-safe store of recent records; remembers more ids than it holds records."""

    def __init__(
        self, max_records: int, max_bytes: int, max_age_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Empty, with its three limits."""
        self._max_age_s = max_age_s
        self._clock = clock
        self._lock = threading.Lock()
        self._entries = FairStore[bytes, _Entry](max_records, max_bytes)
        self._seen = LruDict[bytes, None](SEEN_RECORDS)

    def mark_seen(self, name: bytes) -> bool:
        """Mark an id as seen without storing a record, so it is not requested; False if it was known."""
        with self._lock:
            return self._mark_seen(name)

    def _mark_seen(self, name: bytes) -> bool:
        is_new = name not in self._seen
        self._seen[name] = None
        return is_new

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
            self._expire(now)
            if 0 <= age_s < self._max_age_s:
                self._entries.add(name, _Entry(record, now - age_s, listed, offered), owner, num_bytes=len(record))
            return True

    def has_seen(self, name: bytes) -> bool:
        """Whether a record with this id was seen, as far as ids are remembered."""
        with self._lock:
            return name in self._seen

    def get(self, name: bytes) -> bytes | None:
        """The record with this id; None if it is not held."""
        with self._lock:
            now = self._clock()
            self._expire(now)
            entry = self._entries.get(name)
            return entry.record if entry and now - entry.published_at < self._max_age_s else None

    def listing(self, max_age_s: float, min_age_s: float, most: int) -> list[Held]:
        """Listed records between the two ages, latest arrival first."""
        with self._lock:
            now = self._clock()
            self._expire(now)
            oldest = min(max_age_s, self._max_age_s)
            held: list[Held] = []
            for name in reversed(self._entries):
                if len(held) >= most:
                    break
                entry = self._entries[name]
                if entry.listed and min_age_s <= now - entry.published_at < oldest:
                    held.append(Held(name, len(entry.record), now - entry.published_at, entry.offered))
            return held

    @property
    def num_bytes(self) -> int:
        """Total bytes held."""
        with self._lock:
            return self._entries.num_bytes

    def __len__(self) -> int:
        """Number of records held."""
        with self._lock:
            return len(self._entries)

    def _expire(self, now: float) -> None:
        """Remove old records in order of arrival: one that arrived late may stay past its age, but is not given out."""
        while self._entries:
            name = next(iter(self._entries))
            if now - self._entries[name].published_at < self._max_age_s:
                break
            self._entries.pop(name)


class Mailbox(Generic[T]):
    """Thread-safe bounded queue of records or refusals; writers never block.

    When it is full, the oldest record of the origin with the most is dropped, so a flooding origin displaces itself.
    """

    def __init__(self, max_records: int, max_bytes: int) -> None:
        """Bounds on the number of records and on the sum of their charged bytes."""
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._items = FairStore[int, T](max_records, max_bytes)
        self._numbers = count()
        self._num_dropped = 0

    def put(self, item: T, num_bytes: int, origin: str = "", memory_bytes: int = 0) -> None:
        """Append an item of `origin`; drops others to make room.

        `num_bytes` is its size on the wire; an item larger than the mailbox is dropped. The charge is the larger of
        `num_bytes` and `memory_bytes`, its size in memory.
        """
        # Capped: otherwise a record whose decoded size exceeds the mailbox could never arrive.
        charge = max(num_bytes, min(memory_bytes, self._max_bytes // 2))
        with self._lock:
            self._num_dropped += len(self._items.add(next(self._numbers), item, origin, num_bytes=charge))
            self._filled.notify_all()

    def has_room(self, num_bytes: int) -> bool:
        """Whether an item with this charge fits without dropping another."""
        with self._lock:
            return self._items.has_room(num_bytes)

    def wait(self, timeout_s: float) -> bool:
        """Block until an item is available or the timeout expires; whether one is available."""
        with self._lock:
            return self._filled.wait_for(lambda: len(self._items) > 0, timeout_s)

    def take(self) -> T | None:
        """Remove and return the oldest item; None if empty."""
        with self._lock:
            return self._items.pop(next(iter(self._items))) if self._items else None

    def drain(self) -> list[T]:
        """Remove and return all items, oldest first."""
        with self._lock:
            items = self._items.values()
            self._items.clear()
            return items

    @property
    def num_dropped(self) -> int:
        """Items dropped so far."""
        with self._lock:
            return self._num_dropped
