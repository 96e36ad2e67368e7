"""How strong a hand of hold'em looks, from 0 to 9: a rule of thumb that opponents play by and observations show."""

from __future__ import annotations

from collections.abc import Sequence

from pokerkit import Card, Label, RankOrder

from swarm.environments.episodes.poker.hands import RememberedHand

STRONGEST = 9
RANKS = {rank: number for number, rank in enumerate(RankOrder.STANDARD, start=2)}
"""From 2 to 14, the ace."""
BELOW_A_STRAIGHT = {Label.HIGH_CARD, Label.ONE_PAIR, Label.TWO_PAIR, Label.THREE_OF_A_KIND}


def strength(hole: Sequence[Card], board: Sequence[Card]) -> int:
    """In [0, 9]. Before the flop half of Chen's points, later by what the player's own cards make of the board."""
    return _on_board(hole, board) if board else max(0, min(STRONGEST, int(chen_points(hole) // 2)))


def chen_points(hole: Sequence[Card]) -> float:
    """Points of the first two cards, before rounding. Source: Krieger, "Hold'em Excellence", 1995."""
    low, high = sorted(RANKS[card.rank] for card in hole)
    points = {14: 10.0, 13: 8.0, 12: 7.0, 11: 6.0}.get(high, high / 2)
    if low == high:
        return max(5.0, 2 * points)
    gap = high - low - 1
    points -= {0: 0, 1: 1, 2: 2, 3: 4}.get(gap, 5)
    points += 2 * (hole[0].suit == hole[1].suit)
    return points + (gap <= 1 and high < 12)  # they make more straights


def _on_board(hole: Sequence[Card], board: Sequence[Card]) -> int:
    if RememberedHand.from_game(hole, board).entry.label not in BELOW_A_STRAIGHT:
        return STRONGEST
    own, shown = ([RANKS[card.rank] for card in cards] for cards in (hole, board))
    times = {rank: (own + shown).count(rank) for rank in own}
    paired = [rank for rank, number in times.items() if number >= 2]
    if not paired:
        return 2 if max(own) >= RANKS[RankOrder.STANDARD[-2]] else 1
    if max(times.values()) >= 3:
        return 8
    if len(paired) == 2:
        return 7
    return 6 if paired[0] >= max(shown) else 4
