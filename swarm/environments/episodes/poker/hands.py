"""The best five of a player's cards, remembered: a hand is played again for every turn that is replayed."""

from __future__ import annotations

from functools import lru_cache

from pokerkit import Card, CardsLike, Hand, NoLimitTexasHoldem, StandardHighHand

REMEMBERED = 4_096
"""Choices of cards."""


class RememberedHand(StandardHighHand):
    """PokerKit compares all combinations of five cards, several times a showdown."""

    @classmethod
    def from_game(cls, hole_cards: CardsLike, board_cards: CardsLike = ()) -> Hand:
        """See `CombinationHand`. Raises `ValueError` when there are fewer than five cards."""
        return _best(Card.clean(hole_cards), Card.clean(board_cards))


class Game(NoLimitTexasHoldem):
    """Hold'em that is decided by remembered hands."""

    hand_types = (RememberedHand,)


@lru_cache(REMEMBERED)
def _best(hole: tuple[Card, ...], board: tuple[Card, ...]) -> Hand:
    return StandardHighHand.from_game(hole, board)
