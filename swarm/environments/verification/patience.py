"""When own jobs need a worker of their own, because foreign groups keep them waiting, and until when."""

from __future__ import annotations

PATIENCE_S = 2.0
"""The pool starts a worker for own jobs when these have waited this long in total while foreign groups occupied every
worker, or when one foreign group takes this long."""
PATIENCE_PER_S = 0.05
"""Seconds of waiting forgiven per second: occasional waits do not justify the additional worker's 120 MB."""
LONG_S = 1.0
RESERVED_S = 300.0
"""The worker for own jobs ends when no foreign group has taken `LONG_S` for this time."""


class Patience:
    """Seconds that own jobs may still wait. All times are on one monotonic clock."""

    def __init__(self) -> None:
        """Full patience."""
        self._left_s = PATIENCE_S
        self._measured_at = 0.0
        self._long_at = 0.0
        """Time of the last long foreign group."""

    def ends_at(self, began: float, waiting_since: float) -> float:
        """Time to start a worker for own jobs.

        Foreign groups occupy all others, the newest since `began`; the first own job waits since `waiting_since`,
        infinity when none does.
        """
        # One long group predicts others, even if no own job waited for it.
        return min(began + PATIENCE_S, waiting_since + self._left(waiting_since))

    def reserved_until(self) -> float:
        """Time to end the worker for own jobs."""
        return self._long_at + RESERVED_S

    def note_reserved(self, now: float) -> None:
        """A worker for own jobs was started."""
        self._long_at = now

    def note_foreign(self, began: float, now: float) -> None:
        """A foreign group has ended."""
        if now - began > LONG_S:
            self._long_at = now

    def note_waited(self, since: float, now: float) -> None:
        """An own job waited for foreign groups."""
        self._left_s = self._left(since) - (now - since)
        self._measured_at = now

    def _left(self, now: float) -> float:
        return min(PATIENCE_S, self._left_s + PATIENCE_PER_S * (now - self._measured_at))
