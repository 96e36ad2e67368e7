"""A bounded fair queue: senders are served in turn, and overflow drops from the longest line."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """One line per sender, served round-robin; a full queue drops the oldest item of the longest line."""

    def __init__(self, max_items: int) -> None:
        """An empty queue."""
        self._max_items = max_items
        self._lines: dict[str, deque[T]] = {}
        """Non-empty lines, in the order in which senders are served next."""
        self._waiting = 0

    def __len__(self) -> int:
        """Items in all lines."""
        return self._waiting

    def put(self, sender: str, item: T) -> T | None:
        """Append an item to its sender's line; returns the dropped item, if any."""
        self._lines.setdefault(sender, deque()).append(item)
        self._waiting += 1
        if self._waiting <= self._max_items:
            return None
        # among lines of equal length the newest loses, so that new names cannot displace waiting senders
        return self._take(max(reversed(self._lines), key=self._length))

    def get(self) -> T | None:
        """The oldest item of the next sender; None when the queue is empty."""
        if not self._lines:
            return None
        sender = next(iter(self._lines))
        item = self._take(sender)
        if sender in self._lines:
            self._lines[sender] = self._lines.pop(sender)
        return item

    def clear(self) -> None:
        """Drop all items."""
        self._lines.clear()
        self._waiting = 0

    def _take(self, sender: str) -> T:
        line = self._lines[sender]
        item = line.popleft()
        self._waiting -= 1
        if not line:
            del self._lines[sender]
        return item

    def _length(self, sender: str) -> int:
        return len(self._lines[sender])
