"""What a hand leaves to chance."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

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

    def shuffled(self, cards: Sequence[Card]) -> tuple[Card, ...]:
        """The cards in a random order."""
        return _shuffled(self, tuple(cards))


@lru_cache(1_024)
def _shuffled(chance: Chance, cards: tuple[Card, ...]) -> tuple[Card, ...]:
    """Remembered, because a hand is dealt again for every turn that is replayed."""
    return tuple(sorted(cards, key=lambda card: chance.number(RESOLUTION, "card", repr(card))))
