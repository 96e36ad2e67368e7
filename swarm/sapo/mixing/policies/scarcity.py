"""More of others' groups where own ones have no signal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from swarm.sapo.mixing.base import MAX_ROUNDS, Candidate, Decision, History, MixPolicy


class Scarcity(MixPolicy):
    """J = min(s, `most`) (I + J), where s is the fraction of own groups without signal, but not more than there
    are candidates; I + J stays. All candidates alike."""

    window_rounds: int = Field(10, ge=1, le=MAX_ROUNDS)
    """Rounds over which s is measured."""
    most: float = Field(0.75, ge=0, le=1)
    """Largest fraction of external groups."""

    def __call__(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        """See `MixPolicy`."""
        external, reason = by_scarcity(history, self.window_rounds, self.most)
        external, reason = as_available(external, len(candidates), reason)
        return Decision(history.total - external, external, reason=reason)


def by_scarcity(history: History, window_rounds: int, most: float) -> tuple[int, str]:
    """J, rounded to the nearest whole number, and the reason."""
    scarce = history.without_signal(window_rounds)
    if scarce is None:
        return history.external, "no own groups yet"
    return math.floor(min(scarce, most) * history.total + 0.5), f"{scarce:.0%} of own groups without signal"


def as_available(external: int, num_candidates: int, reason: str) -> tuple[int, str]:
    """J for so many candidates, and the reason: I takes the places that they leave."""
    return (
        (external, reason) if external <= num_candidates else (num_candidates, f"{reason}; {num_candidates} candidates")
    )
