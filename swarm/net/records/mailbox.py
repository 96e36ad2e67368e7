"""The buffer between the network thread and the round: bounded in count and bytes, fair between origins."""

from __future__ import annotations

import threading
from itertools import count
from typing import Generic, TypeVar

from swarm.fair_store import FairStore

T = TypeVar("T")


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
