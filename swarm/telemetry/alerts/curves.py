"""A figure by round in bounded memory, however long the run."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

MAX_BINS = 120
"""Points of a curve: what a chart of 300 pixels shows without noise."""
RECENT = 20
"""Rounds in what counts as the present, as in the first and the best mean; single rounds are too noisy."""


class Curve:
    """Means over bins of equally many rounds. When there are too many bins, each two become one."""

    def __init__(self) -> None:
        """No round yet."""
        self._stride = 1
        self._bins: dict[int, tuple[float, int]] = {}
        """(sum, number of rounds) by (round - 1) // stride, in order."""
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._first: list[float] = []
        self.best: float | None = None
        """The highest mean of `RECENT` consecutive values."""
        self.best_error = math.inf
        """Its standard error."""

    def add(self, round: int, value: float | None) -> None:
        """Add a round's value; an unknown or infinite one is left out. Rounds come in order."""
        if value is None or not math.isfinite(value):
            return
        place = (round - 1) // self._stride
        total, count = self._bins.get(place, (0.0, 0))
        self._bins[place] = (total + value, count + 1)
        if len(self._bins) > MAX_BINS:
            self._halve()
        self._recent.append(value)
        if len(self._first) < RECENT:
            self._first.append(value)
        if (now := self.recent) is not None and (self.best is None or now > self.best):
            self.best, self.best_error = now, self.error

    def cut(self, round: int) -> None:
        """Forget the rounds after `round`: a process has resumed from it, and repeats them."""
        self._bins = {place: found for place, found in self._bins.items() if place * self._stride < round}
        self._recent.clear()

    @property
    def first(self) -> float | None:
        """Mean of the first `RECENT` values; None while there are fewer."""
        return sum(self._first) / RECENT if len(self._first) == RECENT else None

    @property
    def recent(self) -> float | None:
        """Mean of the last `RECENT` values; None while there are fewer."""
        return sum(self._recent) / RECENT if len(self._recent) == RECENT else None

    @property
    def error(self) -> float:
        """Standard error of `recent`; infinite while there are too few values."""
        if (mean := self.recent) is None:
            return math.inf
        return math.sqrt(sum((value - mean) ** 2 for value in self._recent) / (RECENT - 1) / RECENT)

    @property
    def last(self) -> float | None:
        """The latest value."""
        return self._recent[-1] if self._recent else None

    def points(self) -> list[tuple[int, float]]:
        """(last round of the bin, mean over the bin to five digits), at most `MAX_BINS`."""
        means = ((place, total / count) for place, (total, count) in self._bins.items())
        return [((place + 1) * self._stride, float(f"{mean:.5g}")) for place, mean in means]

    def _halve(self) -> None:
        merged: dict[int, tuple[float, int]] = {}
        for place, (total, count) in self._bins.items():
            before, others = merged.get(place // 2, (0.0, 0))
            merged[place // 2] = (before + total, others + count)
        self._bins = merged
        self._stride *= 2


def thinned(points: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """At most `most` of the points, evenly spaced; the last one always stays."""
    step = max(1, math.ceil(len(points) / most))
    return list(points[::-1][::step][::-1])
