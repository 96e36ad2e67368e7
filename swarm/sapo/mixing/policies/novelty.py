"""Right answers that this policy would hardly have written itself."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from swarm.sapo.mixing.base import Candidate, Decision, History, MixPolicy

LEAST_NATS = 1e-6
"""Weight of a candidate that this policy is certain of: the draw can still fall back on it."""


class Novelty(MixPolicy):
    """I and J as configured; a candidate's weight is its surprisal to the power of `power`.

    The screen refuses what is too improbable to be an honest answer. Only `oversample` J random candidates are scored,
    and no candidate twice in a round; the others have weight 0.
    """

    oversample: int = Field(3, ge=1, le=16)
    """Candidates scored for each one drawn; the others wait for a later round."""
    power: float = Field(1.0, ge=0, le=8)
    """0: all scored candidates alike; larger: rather the most surprising ones."""

    def num_scored(self, external: int) -> int:
        """See `MixPolicy`."""
        return self.oversample * external

    def __call__(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        """See `MixPolicy`."""
        weights = [
            0.0 if each.surprisal is None else max(LEAST_NATS, each.surprisal) ** self.power for each in candidates
        ]
        return Decision(history.local, history.external, weights, f"{sum(map(bool, weights))} candidates scored")
