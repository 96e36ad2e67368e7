"""Strategies of Kuhn poker: the probability of betting or calling, not checking or folding, in each situation.

A situation is the player's card and what happened before: `K` and `Kcb` are the first player's, `Kc` and `Kb` the
second's; `c` is a check, `b` a bet.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SITUATIONS = tuple(card + before for card in "JQK" for before in ("", "c", "b", "cb"))


def _of(jack: float, queen: float, king: float) -> dict[str, float]:
    """The same whatever happened before."""
    return {situation: {"J": jack, "Q": queen, "K": king}[situation[0]] for situation in SITUATIONS}


_CALLER = {situation: float(situation.endswith("b")) for situation in SITUATIONS}
_NASH = {
    **{"J": 1 / 3, "Q": 0.0, "K": 1.0, "Jcb": 0.0, "Qcb": 2 / 3, "Kcb": 1.0},
    **{"Jc": 1 / 3, "Qc": 0.0, "Kc": 1.0, "Jb": 0.0, "Qb": 1 / 3, "Kb": 1.0},
}

STRATEGIES: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "random": _of(0.5, 0.5, 0.5),
        "caller": _CALLER,
        "tight": _of(0.0, 0.0, 1.0),
        "aggressive": _of(1.0, 1.0, 1.0),
        "nash": _NASH,
    }
)
"""`caller` never bets and never folds; `tight` only plays the king; `aggressive` always bets or calls; `nash` loses
nothing on average to anyone, seats taken in turn: it is an equilibrium, of which the first player has many."""
