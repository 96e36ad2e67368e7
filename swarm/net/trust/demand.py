"""How much of what others share a node uses: what it knows of how much of its own groups others will use."""

from __future__ import annotations

MIN_HEARD = 64
"""Groups before the fraction says anything."""
MEMORY_GROUPS = 512
"""Older groups fade."""


class Demand:
    """Groups that others sent or offered, and those that updates used; recent ones count most."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._heard = 0.0
        self._used = 0.0
        self._total = 0

    def heard(self, num: int) -> None:
        """Others sent or offered this many groups."""
        fading = 0.5 ** (num / MEMORY_GROUPS)
        self._heard = fading * self._heard + num
        self._used *= fading
        self._total += num

    def used(self, num: int) -> None:
        """An update used this many of them."""
        self._used += num

    @property
    def fraction(self) -> float | None:
        """The fraction of others' groups that this node uses, in [0, 1]; None while too few were heard of."""
        return min(1.0, self._used / self._heard) if self._total >= MIN_HEARD else None
