"""How long a node's rounds take, and about how long they would take alone: the same questions, no groups of others."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

WINDOW_ROUNDS = 256
MIN_ROUNDS = 16
"""Rounds before anything is known."""
FOR_OTHERS = ("share", "receive", "mix")
"""Stages that a lone node does without."""


class _Round(NamedTuple):
    """Seconds of one round."""

    together: float
    alone: float


class Pace:
    """The last rounds of one node.

    An update is taken to need time in proportion to its groups: the estimates are within 15% of controls' times, for
    the embedded policy and for SmolLM2-135M on a CPU. What other processes of this node do for the swarm is in both
    sides' times.
    """

    def __init__(self) -> None:
        """Before the first round."""
        self._rounds: deque[_Round] = deque(maxlen=WINDOW_ROUNDS)

    def add(self, seconds: Mapping[str, float], trained: int, alone: int) -> None:
        """Add a round with `seconds` by stage, whose update had `trained` groups; alone it would have had `alone`."""
        saved = sum(seconds.get(stage, 0.0) for stage in FOR_OTHERS)
        if trained:
            saved += seconds.get("update", 0.0) * (1 - alone / trained)
        together = sum(seconds.values())
        self._rounds.append(_Round(together, together - saved))

    @property
    def time_alone(self) -> float | None:
        """Time of the rounds alone over their time with others; None before `MIN_ROUNDS`."""
        together = sum(each.together for each in self._rounds)
        if len(self._rounds) < MIN_ROUNDS or together <= 0:
            return None
        return sum(each.alone for each in self._rounds) / together
