"""What a hand leaves to chance."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from pokerkit import Card

from swarm.environments.digests import draw

RESOLUTION = 2**53


class Chance(Struct, frozen=True):
    """Draws that are a function of the hand's start and of what is drawn, whatever was drawn before."""

    game: str
    seed: int
    index: int
    deal: int
    """How often the cards have been dealt again."""

    def number(self, bound: int, *what: str | int) -> int:
        """An integer in [0, bound)."""
        return draw(bound, self.game, self.seed, self.index, self.deal, *what)

    def happens(self, probability: float, *what: str | int) -> bool:
        """Whether something with this probability happens."""
        return self.number(RESOLUTION, *what) < probability * RESOLUTION

    def shuffled(self, cards: Iterable[Card]) -> list[Card]:
        """The cards in a random order."""
        return sorted(cards, key=lambda card: self.number(RESOLUTION, "card", repr(card)))
