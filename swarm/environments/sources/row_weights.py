"""Rows that are drawn in proportion to a column of the data set."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable


class RowWeights:
    """The rows by their weights; every node draws the same ones. One with an invalid weight is never drawn."""

    def __init__(
        self, values: Iterable[object], is_left_out: Callable[[int], bool], note: Callable[[int, str], None]
    ) -> None:
        """`values` are the column's, `is_left_out` says which rows never count, and `note` takes the number of a row
        with an invalid weight, and why it is. Raises `ValueError` if no row has a weight above 0."""
        self._sums = array("d")
        total = 0.0
        for row, value in enumerate(values):
            weight = _weight(value)
            if weight is None:
                note(row, f"its weight must be a number of at least 0, got {value!r:.40}")
            total += 0.0 if is_left_out(row) else weight or 0.0
            self._sums.append(total)
        if not 0 < total < math.inf:
            raise ValueError(f"the rows' weights must have a finite sum above 0, got {total:g}")
        self._last = bisect_left(self._sums, total)

    def row(self, place: float) -> int:
        """The row at a place in [0, 1) of all weights."""
        return min(bisect_right(self._sums, place * self._sums[-1]), self._last)


def _weight(value: object) -> float | None:
    """None for what is no weight; text counts, as CSV has nothing else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        weight = float(value)
    except (ValueError, OverflowError):
        return None
    return weight if 0 <= weight < math.inf else None
