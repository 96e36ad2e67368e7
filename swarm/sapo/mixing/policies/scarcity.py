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
        scarce = history.without_signal(self.window_rounds)
        if scarce is None:
            external, reason = history.external, "no own groups yet"
        else:
            external = math.floor(min(scarce, self.most) * history.total + 0.5)
            reason = f"{scarce:.0%} of own groups without signal"
        if external > len(candidates):
            external, reason = len(candidates), f"{reason}; {len(candidates)} candidates"
        return Decision(history.total - external, external, reason=reason)
