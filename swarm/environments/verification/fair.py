"""A bounded queue in which nobody can crowd out another: senders take turns, and the longest line loses."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A line for each sender, served in turn; when all places are taken, the longest line gives up its oldest item."""

    def __init__(self, places: int) -> None:
        """Nobody waits yet."""
        self._places = places
        self._lines: dict[str, deque[T]] = {}
        """In the order in which senders are served next; none is empty."""
        self._waiting = 0

    def __len__(self) -> int:
        """Items in all lines."""
        return self._waiting

    def put(self, sender: str, item: T) -> T | None:
        """Queue an item at the end of its sender's line; the item that had to give way, if any."""
        self._lines.setdefault(sender, deque()).append(item)
        self._waiting += 1
        if self._waiting <= self._places:
            return None
        # among lines of one length that of whoever came last, or new names would push out those who wait
        return self._take(max(reversed(self._lines), key=self._length))

    def get(self) -> T | None:
        """The oldest item of the sender whose turn it is; None when nobody waits."""
        if not self._lines:
            return None
        sender = next(iter(self._lines))
        item = self._take(sender)
        if sender in self._lines:
            self._lines[sender] = self._lines.pop(sender)
        return item

    def clear(self) -> None:
        """Send everybody home."""
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
