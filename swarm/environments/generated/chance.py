"""What a question leaves to chance: integers that follow from a key alone, whatever was drawn before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec import Struct

from swarm.environments.digests import draw

Choice = TypeVar("Choice")
RESOLUTION = 2**53


class Chance(Struct, frozen=True):
    """Draws of one question."""

    key: tuple[str | int, ...]
    """Task, stream and index."""

    def number(self, low: int, high: int, *what: str | int) -> int:
        """An integer from `low` to `high`, both included."""
        return low + draw(high - low + 1, *self.key, *what)

    def one_of(self, choices: Sequence[Choice], *what: str | int) -> Choice:
        """One of several."""
        return choices[self.number(0, len(choices) - 1, *what)]

    def shuffled(self, items: Sequence[Choice], *what: str | int) -> list[Choice]:
        """All of them in a random order."""
        keys = [draw(RESOLUTION, *self.key, *what, place) for place in range(len(items))]
        return [items[place] for place in sorted(range(len(items)), key=lambda place: (keys[place], place))]
