"""Combines what is known: this round's own signal, difficulty, worth of senders, and the own reward's course.

Progress of an update on n groups of mean worth w, in own groups, where noise dominates the gradient:

    sum of worths / sqrt(n)    (progress in swarm/sapo/worth.py, with its noise alone)

Among equally noisy groups, the best update of at most I + J groups therefore takes those of most worth, and another one
as long as the quotient rises: to n own groups, one of others is added if its worth exceeds sqrt(n (n + 1)) - n, about
one half.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, pvariance
from typing import ClassVar

from msgspec import Struct, to_builtins
from msgspec.structs import replace
from pydantic import Field

from swarm.sapo.mixing.base import MAX_ROUNDS, Candidate, Decision, History, MixPolicy
from swarm.sapo.mixing.policies.advantage import mean_magnitude
from swarm.sapo.mixing.policies.edge import learnability
from swarm.sapo.mixing.policies.worth import worth_weight

OWN = UNKNOWN = 1.0
"""Worth of an own group, and of a group whose sender's worth is unknown."""


class Auto(MixPolicy):
    """I + J groups in every update: own ones with signal, and others' in all places that these leave.

    J is the number of others' groups that promises the most progress by the worth of their senders, times a factor that
    falls on drawdown. A group of unknown worth counts as an own one. Groups of more worth than own ones come before
    them, up to `most` of the places. A candidate's weight is the product of those of `advantage`, `edge` and `worth`.

    The factor halves when the mean own reward has fallen clearly below its best while external groups were used; only
    later rounds count for the next best. Otherwise it rises back to 1.
    """

    needs_advantages: ClassVar[bool] = True
    window_rounds: int = Field(20, ge=2, le=MAX_ROUNDS)
    """Rounds over which own rewards and own success are measured."""
    most: float = Field(0.75, ge=0, le=1)
    """Fraction of the places that others' groups may take although own ones have signal."""
    drop: float = Field(0.15, gt=0, le=1)
    """Fraction of the best mean reward whose loss is a drawdown."""
    sigmas: float = Field(5.0, ge=0)
    """Standard errors by which the two means must differ."""
    recover_rounds: int = Field(50, ge=1)
    """Rounds in which the factor rises from 0 to 1."""

    def __call__(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        """See `MixPolicy`."""
        difficulties = learnability(history, candidates, self.window_rounds, own=0.5)
        worths = [worth_weight(candidate, unknown=UNKNOWN, floor=0.0) for candidate in candidates]
        weights = [
            difficulty * mean_magnitude(candidate) * worth
            for candidate, difficulty, worth in zip(candidates, difficulties, worths, strict=True)
        ]
        caution = self._caution(history)
        own = history.rounds[-1].num_informative
        usable = [worth for worth, weight in zip(worths, weights, strict=True) if weight > 0]
        external = self._external(history.total, own, usable)
        reason = f"{own} own groups with signal, {external} of {len(candidates)} others' wanted"
        if caution.factor < 1:
            external = math.floor(caution.factor * external + 0.5)
            reason += f"; {caution.factor:.0%} of them after a drawdown"
        return Decision(history.total - external, external, weights, reason, to_builtins(caution))

    def _external(self, places: int, own: int, worths: Sequence[float]) -> int:
        """J for `own` groups with signal and candidates of these worths."""
        best, most_progress = 0, math.sqrt(min(own, places))
        total = 0.0
        for external, worth in enumerate(sorted(worths, reverse=True)[:places], 1):
            total += worth
            kept = min(own, places - external)
            if kept < own and (worth <= OWN or external > self.most * places):
                break
            progress = (kept + total) / math.sqrt(kept + external)
            if progress > most_progress:
                best, most_progress = external, progress
        return best

    def _caution(self, history: History) -> _Caution:
        """The factor for this round."""
        before = _Caution.load(history.state)
        rewards = history.rewards(self.window_rounds)
        num_rounds = before.num_rounds + 1
        if min(num_rounds, len(rewards)) < self.window_rounds:
            return replace(before, num_rounds=num_rounds)
        mean, variance = fmean(rewards), pvariance(rewards)
        best, best_variance = max((before.best, before.best_variance), (mean, variance))
        error = math.sqrt((best_variance + variance) / len(rewards))
        others = any(each.num_external for each in history.rounds[-self.window_rounds :])
        if others and best - mean > max(self.drop * best, self.sigmas * error):
            return _Caution(before.factor / 2)
        return _Caution(min(1.0, before.factor + 1 / self.recover_rounds), best, best_variance, num_rounds)


class _Caution(Struct, frozen=True):
    """How far others' groups are held back."""

    factor: float = 1.0
    """Of J."""
    best: float = 0.0
    """Best mean reward since the last drawdown."""
    best_variance: float = 0.0
    """Variance of the rewards in it: the latest window's alone would be too small if that is low by chance."""
    num_rounds: int = 0
    """Rounds since then."""

    @classmethod
    def load(cls, state: Mapping[str, float]) -> _Caution:
        return cls(
            state.get("factor", 1.0),
            state.get("best", 0.0),
            state.get("best_variance", 0.0),
            int(state.get("num_rounds", 0)),
        )
