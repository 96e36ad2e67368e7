"""Groups with larger advantages first."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import ClassVar

from swarm.sapo.mixing.base import Candidate, Decision, History, MixPolicy


class Advantage(MixPolicy):
    """I and J as configured; a candidate's weight is its mean |advantage|, as the update computes it."""

    needs_advantages: ClassVar[bool] = True

    def __call__(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        """See `MixPolicy`."""
        return Decision(history.local, history.external, [mean_magnitude(each) for each in candidates])


def mean_magnitude(candidate: Candidate) -> float:
    """Mean |advantage| of a candidate's completions."""
    assert candidate.advantages is not None  # `needs_advantages`
    return fmean(abs(advantage) for advantage in candidate.advantages)
