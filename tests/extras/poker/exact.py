"""Kuhn poker solved by enumeration, without PokerKit: what a hand is worth on average, seats taken in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations, product
from statistics import fmean

from swarm.extras.poker.tasks import SITUATIONS

Strategy = Mapping[str, float]
CARDS = "JQK"
PAYOFFS = {"cc": 1, "bb": 2, "cbb": 2}
"""Chips that the higher card wins, by the moves: `c` check, `b` bet or call, `f` fold."""
FOLDED = {"bf": 1, "cbf": -1}
"""Chips that the first player wins."""


def first_players_value(first: Strategy, second: Strategy) -> float:
    """Chips a hand that the first player wins on average."""
    return fmean(_value((first, second), cards, "") for cards in permutations(CARDS, 2))


def value(ours: Strategy, theirs: Strategy) -> float:
    """The same for a player who is first in every other hand."""
    return (first_players_value(ours, theirs) - first_players_value(theirs, ours)) / 2


def best_response(opponents: Sequence[Strategy]) -> float:
    """Chips a hand of the best player against one of these, who do not show who they are."""
    pure = (dict(zip(SITUATIONS, bets, strict=True)) for bets in product((0.0, 1.0), repeat=len(SITUATIONS)))
    return max(fmean(value(ours, theirs) for theirs in opponents) for ours in pure)


def _value(players: tuple[Strategy, Strategy], cards: tuple[str, ...], moves: str) -> float:
    if moves in FOLDED:
        return FOLDED[moves]
    if moves in PAYOFFS:
        return PAYOFFS[moves] if CARDS.index(cards[0]) > CARDS.index(cards[1]) else -PAYOFFS[moves]
    player = len(moves) % 2
    bets = players[player][cards[player] + moves]
    passing = "f" if moves.endswith("b") else "c"
    return bets * _value(players, cards, moves + "b") + (1 - bets) * _value(players, cards, moves + passing)
