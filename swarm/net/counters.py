"""Cumulative counters, written from the network thread and the round's thread."""

from __future__ import annotations

import threading
from collections import Counter


class Counters:
    """A thread-safe counter by name."""

    def __init__(self) -> None:
        """All counts are zero."""
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Add `count` to `name`."""
        with self._lock:
            self._counts[name] += count

    def snapshot(self) -> dict[str, int]:
        """A copy of all counts."""
        with self._lock:
            return dict(self._counts)
