"""The buffer between the network thread and the round: bounded in count and bytes, fair between those who fill it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from heapq import merge
from itertools import count


class _Pile:
    """What one origin has put in, oldest first."""

    def __init__(self) -> None:
        self.records: deque[tuple[int, bytes, int]] = deque()
        """Number, record, bytes that it counts for."""
        self.num_bytes = 0

    def put(self, number: int, record: bytes, num_bytes: int) -> None:
        self.records.append((number, record, num_bytes))
        self.num_bytes += num_bytes

    def take(self) -> tuple[bytes, int]:
        _, record, num_bytes = self.records.popleft()
        self.num_bytes -= num_bytes
        return record, num_bytes


class Mailbox:
    """Thread-safe queue of records that never blocks a writer and never exceeds its bounds.

    When it is full, the oldest record of whoever has most in it makes room: one that floods it displaces itself.
    """

    def __init__(self, max_records: int, max_bytes: int) -> None:
        """Bounds on the number of records and on the sum of what they count for."""
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._piles: dict[str, _Pile] = {}
        self._numbers = count()
        self._num_records = 0
        self._num_bytes = 0
        self._num_dropped = 0

    def put(self, record: bytes, origin: str = "", num_bytes: int = 0) -> None:
        """Append a record of `origin`, dropping others to make room; one larger than the whole mailbox is dropped.

        It counts for `num_bytes`, what whoever takes it will make of it, if that is more than its length.
        """
        with self._lock:
            if len(record) > self._max_bytes:
                self._num_dropped += 1
                return
            # Or one that becomes larger than the mailbox when it is opened would never come.
            num_bytes = max(len(record), min(num_bytes, self._max_bytes // 2))
            self._piles.setdefault(origin, _Pile()).put(next(self._numbers), record, num_bytes)
            self._num_records += 1
            self._num_bytes += num_bytes
            while self._num_records > self._max_records:
                self._drop(lambda pile: len(pile.records))
            while self._num_bytes > self._max_bytes:
                self._drop(lambda pile: pile.num_bytes)
            self._filled.notify_all()

    def has_room(self, num_bytes: int) -> bool:
        """Whether a record that counts for `num_bytes` would displace no other."""
        with self._lock:
            return self._num_records < self._max_records and self._num_bytes + num_bytes <= self._max_bytes

    def wait(self, timeout_s: float) -> bool:
        """Block until there is something to take; whether there is."""
        with self._lock:
            return self._filled.wait_for(lambda: self._num_records > 0, timeout_s)

    def take(self) -> bytes | None:
        """The oldest record, removed; None when empty."""
        with self._lock:
            if not self._piles:
                return None
            return self._remove(min(self._piles, key=lambda origin: self._piles[origin].records[0][0]))

    def drain(self) -> list[bytes]:
        """Everything, oldest first; the mailbox is empty afterwards."""
        with self._lock:
            records = [record for _, record, _ in merge(*(pile.records for pile in self._piles.values()))]
            self._piles.clear()
            self._num_records = self._num_bytes = 0
            return records

    @property
    def num_dropped(self) -> int:
        """Records dropped so far."""
        with self._lock:
            return self._num_dropped

    def _drop(self, size: Callable[[_Pile], int]) -> None:
        self._remove(max(self._piles, key=lambda origin: size(self._piles[origin])))
        self._num_dropped += 1

    def _remove(self, origin: str) -> bytes:
        pile = self._piles[origin]
        record, num_bytes = pile.take()
        if not pile.records:
            del self._piles[origin]
        self._num_records -= 1
        self._num_bytes -= num_bytes
        return record
