"""The buffer between the network thread and the round: bounded in count and bytes, fair between origins."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from heapq import merge
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class _Queue(Generic[T]):
    """Items of one origin, oldest first."""

    def __init__(self) -> None:
        self.items: deque[tuple[int, T, int]] = deque()
        """Sequence number, item, charged bytes."""
        self.num_bytes = 0

    def put(self, number: int, item: T, num_bytes: int) -> None:
        self.items.append((number, item, num_bytes))
        self.num_bytes += num_bytes

    def take(self) -> tuple[T, int]:
        _, item, num_bytes = self.items.popleft()
        self.num_bytes -= num_bytes
        return item, num_bytes


class Mailbox(Generic[T]):
    """Thread-safe bounded queue of records or refusals; writers never block.

    When it is full, the oldest record of the origin with the most is dropped, so a flooding origin displaces itself.
    """

    def __init__(self, max_records: int, max_bytes: int) -> None:
        """Bounds on the number of records and on the sum of their charged bytes."""
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._queues: dict[str, _Queue[T]] = {}
        self._numbers = count()
        self._num_items = 0
        self._num_bytes = 0
        self._num_dropped = 0

    def put(self, item: T, num_bytes: int, origin: str = "", memory_bytes: int = 0) -> None:
        """Append an item of `origin`; drops others to make room.

        `num_bytes` is its size on the wire; an item larger than the mailbox is dropped. The charge is the larger of
        `num_bytes` and `memory_bytes`, its size in memory.
        """
        with self._lock:
            if num_bytes > self._max_bytes:
                self._num_dropped += 1
                return
            # Capped: otherwise a record whose decoded size exceeds the mailbox could never arrive.
            num_bytes = max(num_bytes, min(memory_bytes, self._max_bytes // 2))
            self._queues.setdefault(origin, _Queue()).put(next(self._numbers), item, num_bytes)
            self._num_items += 1
            self._num_bytes += num_bytes
            while self._num_items > self._max_records:
                self._drop(lambda queue: len(queue.items))
            while self._num_bytes > self._max_bytes:
                self._drop(lambda queue: queue.num_bytes)
            self._filled.notify_all()

    def has_room(self, num_bytes: int) -> bool:
        """Whether an item with this charge fits without dropping another."""
        with self._lock:
            return self._num_items < self._max_records and self._num_bytes + num_bytes <= self._max_bytes

    def wait(self, timeout_s: float) -> bool:
        """Block until an item is available or the timeout expires; whether one is available."""
        with self._lock:
            return self._filled.wait_for(lambda: self._num_items > 0, timeout_s)

    def take(self) -> T | None:
        """Remove and return the oldest item; None if empty."""
        with self._lock:
            if not self._queues:
                return None
            return self._remove(min(self._queues, key=lambda origin: self._queues[origin].items[0][0]))

    def drain(self) -> list[T]:
        """Remove and return all items, oldest first."""
        with self._lock:
            every = merge(*(queue.items for queue in self._queues.values()), key=lambda numbered: numbered[0])
            items = [item for _, item, _ in every]
            self._queues.clear()
            self._num_items = self._num_bytes = 0
            return items

    @property
    def num_dropped(self) -> int:
        """Items dropped so far."""
        with self._lock:
            return self._num_dropped

    def _drop(self, size: Callable[[_Queue[T]], int]) -> None:
        self._remove(max(self._queues, key=lambda origin: size(self._queues[origin])))
        self._num_dropped += 1

    def _remove(self, origin: str) -> T:
        queue = self._queues[origin]
        item, num_bytes = queue.take()
        if not queue.items:
            del self._queues[origin]
        self._num_items -= 1
        self._num_bytes -= num_bytes
        return item
