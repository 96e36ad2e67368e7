"""Scripted players of hold'em: what one does with a menu, given how strong its hand looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from swarm.environments.episodes.poker.moves import Menu, Move

Player = Callable[[Menu, int, float], Move]
"""(menu, strength in [0, 9], a random number in [0, 1)) -> move."""

FOLD, CALL, SMALLEST, POT, ALL_IN = 1, 2, 3, 4, 5
"""The numbers on the menu: `CALL` is also checking; the last three are the smallest raise, one by the pot, and the
whole stack."""
GOOD, GREAT = 4, 6
"""Of strength."""


def random(menu: Menu, strength: int, luck: float) -> Move:
    """Every move on the menu is as likely."""
    moves = list(menu.numbered.values())
    return moves[int(luck * len(moves))]


def caller(menu: Menu, strength: int, luck: float) -> Move:
    """Never folds, never raises."""
    return menu.numbered[CALL]


def tight(menu: Menu, strength: int, luck: float) -> Move:
    """Raises with great hands, calls with good ones, and folds the others."""
    if strength >= GREAT:
        return menu.numbered.get(POT) or menu.numbered.get(SMALLEST) or menu.numbered[CALL]
    return menu.numbered[CALL] if strength >= GOOD else menu.numbered.get(FOLD) or menu.numbered[CALL]


def aggressive(menu: Menu, strength: int, luck: float) -> Move:
    """Raises by the pot three times out of four, whatever it holds, and else calls; it never folds."""
    return menu.numbered.get(POT) or menu.numbered[CALL] if luck < 0.75 else menu.numbered[CALL]


PLAYERS: Mapping[str, Player] = MappingProxyType(
    {player.__name__: player for player in (random, caller, tight, aggressive)}
)
