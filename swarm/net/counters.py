"""Cumulative counts, written from the network thread and the round's."""

from __future__ import annotations

import threading
from collections import Counter


class Counters:
    """A thread-safe counter by name."""

    def __init__(self) -> None:
        """Everything at zero."""
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """`count` more of `name`."""
        with self._lock:
            self._counts[name] += count

    def snapshot(self) -> dict[str, int]:
        """Every count so far."""
        with self._lock:
            return dict(self._counts)
