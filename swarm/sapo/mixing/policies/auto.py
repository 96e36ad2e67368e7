"""Combines what is known: scarcity of own signal, difficulty, worth of senders, and the own reward's course."""

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
from swarm.sapo.mixing.policies.scarcity import as_available, by_scarcity
from swarm.sapo.mixing.policies.worth import worth_weight


class Auto(MixPolicy):
    """J as `scarcity` decides, times a factor that falls on drawdown; I + J stays.

    A candidate's weight is the product of those of `advantage`, `edge` and `worth`. The factor halves when the mean own
    reward has fallen clearly below its best while external groups were used; only later rounds count for the next best.
    Otherwise it rises back to 1.
    """

    needs_advantages: ClassVar[bool] = True
    window_rounds: int = Field(20, ge=2, le=MAX_ROUNDS)
    """Rounds over which own rewards, own success and own signal are measured."""
    most: float = Field(0.75, ge=0, le=1)
    """Largest fraction of external groups."""
    drop: float = Field(0.15, gt=0, le=1)
    """Fraction of the best mean reward whose loss is a drawdown."""
    sigmas: float = Field(5.0, ge=0)
    """Standard errors by which the two means must differ."""
    recover_rounds: int = Field(50, ge=1)
    """Rounds in which the factor rises from 0 to 1."""

    def __call__(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        """See `MixPolicy`."""
        weights = [
            difficulty * mean_magnitude(candidate) * worth_weight(candidate, unknown=1.0, floor=0.0)
            for candidate, difficulty in zip(
                candidates, learnability(history, candidates, self.window_rounds, own=0.5), strict=True
            )
        ]
        caution = self._caution(history)
        external, reason = by_scarcity(history, self.window_rounds, self.most)
        external = math.floor(caution.factor * external + 0.5)
        if caution.factor < 1:
            reason += f"; {caution.factor:.0%} of J after a drawdown"
        external, reason = as_available(external, sum(weight > 0 for weight in weights), reason)
        return Decision(history.total - external, external, weights, reason, to_builtins(caution))

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
