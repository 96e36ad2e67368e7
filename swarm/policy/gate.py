"""A lock on the weights: generation reads them step by step, an update or a snapshot changes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class WeightGate:
    """Lets one thread change the weights between two decode steps of another, without waiting for its completions.

    Changes take precedence, because generation reacquires the lock at every step. Not reentrant.
    """

    def __init__(self) -> None:
        """An unlocked gate."""
        self.changes = 0
        """Number of changes so far; results computed at another count used other weights."""
        self._free = threading.Condition()
        self._taken = False
        self._changers = 0

    @contextmanager
    def use(self) -> Iterator[None]:
        """Hold the weights constant within the block."""
        with self._free:
            self._free.wait_for(lambda: not self._taken and not self._changers)
            self._taken = True
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def change(self) -> Iterator[None]:
        """Exclude readers within the block; keep it short."""
        with self._free:
            self._changers += 1
            try:
                self._free.wait_for(lambda: not self._taken)
            finally:
                self._changers -= 1
            self._taken = True
        try:
            yield
        finally:
            self.changes += 1
            self._leave()

    def __deepcopy__(self, memo: object) -> WeightGate:
        """A copied policy has its own weights and an unlocked gate."""
        return WeightGate()

    def _leave(self) -> None:
        with self._free:
            self._taken = False
            self._free.notify_all()
