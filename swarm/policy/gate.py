"""Whose turn it is with the weights: generation reads them step by step, an update or a snapshot changes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class WeightGate:
    """Lets one thread change weights between two decode steps of another, without waiting for its completions.

    Whoever changes goes first: generation takes a turn a step, and would otherwise seldom let go. Turns do not nest.
    """

    def __init__(self) -> None:
        """An open gate."""
        self.changes = 0
        """Changes so far: what was computed at another count was computed with other weights."""
        self._free = threading.Condition()
        self._taken = False
        self._changers = 0

    @contextmanager
    def use(self) -> Iterator[None]:
        """Weights stay as they are within."""
        with self._free:
            self._free.wait_for(lambda: not self._taken and not self._changers)
            self._taken = True
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def change(self) -> Iterator[None]:
        """Nobody reads the weights within; keep it short."""
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
        """A copied policy has weights of its own, and nobody is at them."""
        return WeightGate()

    def _leave(self) -> None:
        with self._free:
            self._taken = False
            self._free.notify_all()
