"""The buffer between the network thread and the round: bounded in count and bytes, fair between those who fill it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from heapq import merge
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class _Pile(Generic[T]):
    """What one origin has put in, oldest first."""

    def __init__(self) -> None:
        self.items: deque[tuple[int, T, int]] = deque()
        """Number, item, bytes that it counts for."""
        self.num_bytes = 0

    def put(self, number: int, item: T, num_bytes: int) -> None:
        self.items.append((number, item, num_bytes))
        self.num_bytes += num_bytes

    def take(self) -> tuple[T, int]:
        _, item, num_bytes = self.items.popleft()
        self.num_bytes -= num_bytes
        return item, num_bytes


class Mailbox(Generic[T]):
    """Thread-safe queue of records, or what became of them, that never blocks a writer and never exceeds its bounds.

    When it is full, the oldest record of whoever has most in it makes room: one that floods it displaces itself.
    """

    def __init__(self, max_records: int, max_bytes: int) -> None:
        """Bounds on the number of records and on the sum of what they count for."""
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._piles: dict[str, _Pile[T]] = {}
        self._numbers = count()
        self._num_items = 0
        self._num_bytes = 0
        self._num_dropped = 0

    def put(self, item: T, num_bytes: int, origin: str = "", memory_bytes: int = 0) -> None:
        """Append what came from `origin`, dropping others to make room.

        `num_bytes`: its length as it travels; one larger than the whole mailbox is dropped. It counts for
        `memory_bytes`, what it takes here, if that is more.
        """
        with self._lock:
            if num_bytes > self._max_bytes:
                self._num_dropped += 1
                return
            # Or one that is larger than the mailbox once it is opened would never come.
            num_bytes = max(num_bytes, min(memory_bytes, self._max_bytes // 2))
            self._piles.setdefault(origin, _Pile()).put(next(self._numbers), item, num_bytes)
            self._num_items += 1
            self._num_bytes += num_bytes
            while self._num_items > self._max_records:
                self._drop(lambda pile: len(pile.items))
            while self._num_bytes > self._max_bytes:
                self._drop(lambda pile: pile.num_bytes)
            self._filled.notify_all()

    def has_room(self, num_bytes: int) -> bool:
        """Whether a record that counts for `num_bytes` would displace no other."""
        with self._lock:
            return self._num_items < self._max_records and self._num_bytes + num_bytes <= self._max_bytes

    def wait(self, timeout_s: float) -> bool:
        """Block until there is something to take; whether there is."""
        with self._lock:
            return self._filled.wait_for(lambda: self._num_items > 0, timeout_s)

    def take(self) -> T | None:
        """The oldest, removed; None when empty."""
        with self._lock:
            if not self._piles:
                return None
            return self._remove(min(self._piles, key=lambda origin: self._piles[origin].items[0][0]))

    def drain(self) -> list[T]:
        """Everything, oldest first; the mailbox is empty afterwards."""
        with self._lock:
            every = merge(*(pile.items for pile in self._piles.values()), key=lambda numbered: numbered[0])
            items = [item for _, item, _ in every]
            self._piles.clear()
            self._num_items = self._num_bytes = 0
            return items

    @property
    def num_dropped(self) -> int:
        """How many were dropped so far."""
        with self._lock:
            return self._num_dropped

    def _drop(self, size: Callable[[_Pile[T]], int]) -> None:
        self._remove(max(self._piles, key=lambda origin: size(self._piles[origin])))
        self._num_dropped += 1

    def _remove(self, origin: str) -> T:
        pile = self._piles[origin]
        item, num_bytes = pile.take()
        if not pile.items:
            del self._piles[origin]
        self._num_items -= 1
        self._num_bytes -= num_bytes
        return item
