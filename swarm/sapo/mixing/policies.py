"""The mixing policies, and the settings of the mix.

`auto` weighs what is known. The progress of an update on n groups of mean worth w, in own groups, where noise dominates
the gradient:

    sum of worths / sqrt(n)    (progress in swarm/sapo/worth.py, with its noise alone)

Among equally noisy groups, the best update of at most I + J groups therefore takes those of most worth, and another one
as long as the quotient rises: to n own groups, one of others is added if its worth exceeds sqrt(n (n + 1)) - n, about
one half.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, pvariance
from typing import ClassVar, Literal

from msgspec import Struct, to_builtins
from msgspec.structs import replace
from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from swarm.kinds import Kinds
from swarm.sapo.mixing.base import MAX_ROUNDS, Candidate, Decision, History, MixPolicy
from swarm.settings import Settings


class Fixed(MixPolicy):
    """I = `mix.local`, J = `mix.external`, all candidates alike.

    Source: arXiv:2509.08721, section 3.
    """

    def __call__(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        """See `MixPolicy`."""
        return Decision(history.local, history.external)


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


class Edge(MixPolicy):
    """I and J as configured; a candidate's weight is 4 p (1 - p), the variance of a reward of 0 or 1, scaled to 1.

    p estimates this node's success at the question: a mean of its recent success on the task and of the group's own.
    Source: arXiv:2408.15099 (learnability), with another policy's rewards instead of own ones.
    """

    window_rounds: int = Field(20, ge=1, le=MAX_ROUNDS)
    """Rounds over which own success is measured."""
    own: float = Field(0.5, ge=0, lt=1)
    """Weight of own success in p. Below 1, since a task that this node never solves would otherwise have no weight."""

    def __call__(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        """See `MixPolicy`."""
        return Decision(
            history.local, history.external, learnability(history, candidates, self.window_rounds, self.own)
        )


def learnability(history: History, candidates: Sequence[Candidate], window_rounds: int, own: float) -> list[float]:
    """4 p (1 - p) of each candidate; for a task without own completions p is the group's success."""
    success = history.success(window_rounds)
    weights = []
    for candidate in candidates:
        p = own * success.get(candidate.task, candidate.success) + (1 - own) * candidate.success
        weights.append(max(0.0, 4 * p * (1 - p)))
    return weights


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


class Worth(MixPolicy):
    """I and J as configured; a candidate's weight is the measured worth of its sender.

    While no sender's worth is known, all candidates are alike.
    """

    unknown: float = Field(1.0, ge=0)
    """Weight of senders of unknown worth; 1 is the worth of an own group."""
    floor: float = Field(0.0, ge=0)
    """Least weight of senders of known worth; with 0, those whose groups do not help are not drawn."""

    def __call__(self, history: History, candidates: Sequence[Candidate]) -> Decision:
        """See `MixPolicy`."""
        known = {each.sender for each in candidates if each.worth is not None}
        weights = [worth_weight(each, self.unknown, self.floor) for each in candidates]
        return Decision(history.local, history.external, weights, f"worth of {len(known)} senders known")


def worth_weight(candidate: Candidate, unknown: float, floor: float) -> float:
    """The worth of a candidate's sender as a weight."""
    return unknown if candidate.worth is None else max(floor, candidate.worth)


OWN = UNKNOWN = 1.0
"""Worth of an own group, and of a group whose sender's worth is unknown."""


class Auto(MixPolicy):
    """I + J groups in every update: own ones with signal, and others' in all slots that these leave.

    J is the number of others' groups that promises the most progress by the worth of their senders, times a factor that
    falls on drawdown. A group of unknown worth counts as an own one. Groups of more worth than own ones come before
    them, up to `most` of the slots. A candidate's weight is the product of those of `advantage`, `edge` and `worth`.

    The factor halves when the mean own reward has fallen clearly below its best while external groups were used; only
    later rounds count for the next best. Otherwise it rises back to 1.
    """

    needs_advantages: ClassVar[bool] = True
    window_rounds: int = Field(20, ge=2, le=MAX_ROUNDS)
    """Rounds over which own rewards and own success are measured."""
    most: float = Field(0.75, ge=0, le=1)
    """Fraction of the slots that others' groups may take although own ones have signal."""
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

    def _external(self, slots: int, own: int, worths: Sequence[float]) -> int:
        """J for `own` groups with signal and candidates of these worths."""
        best, most_progress = 0, math.sqrt(min(own, slots))
        total = 0.0
        for external, worth in enumerate(sorted(worths, reverse=True)[:slots], 1):
            total += worth
            kept = min(own, slots - external)
            if kept < own and (worth <= OWN or external > self.most * slots):
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


POLICIES: Kinds[type[MixPolicy]] = Kinds(
    "mixing policy",
    "swarm.mixes",
    "swarm.sapo.mixing:MixPolicy",
    {each.__name__.lower(): f"{__name__}:{each.__name__}" for each in (Fixed, Advantage, Edge, Novelty, Worth, Auto)},
)


class MixSettings(Settings):
    """I local + J external groups per update."""

    local: int = Field(4, ge=0)
    """I: local groups per update."""
    external: int = Field(4, ge=0)
    """J: external groups per update."""
    policy: str = "fixed"
    """Decides I, J and the candidates' weights in every round: `fixed`, `advantage`, `edge`, `novelty`, `worth`,
    `auto`, or the location of a custom one: `file.py:MyMix` or `mypackage.mymodule:MyMix`."""
    settings: SerializeAsAny[MixPolicy] = Field({}, validate_default=True)
    """Settings of the policy."""
    fill: Literal["none", "local"] = "none"
    """What replaces missing external groups: nothing (the shortfall is reported), or more local groups."""
    external_old_logprobs: Literal["receiver", "behaviour", "none"] = "receiver"
    """Old log-probabilities of external groups: this node's own when the batch is built (`receiver`, as in the paper),
    the sender's (`behaviour`; only with the same tokenizer, else `receiver`), or `none`: the ratio is 1."""
    external_negative_weight: float = Field(0.25, ge=0, le=1)
    """Weight of external completions with negative advantage; 1 as in the paper. A lower value limits how far wrong
    answers in this policy's format can drive it away from that format."""

    @model_validator(mode="after")
    def _something_to_train_on(self) -> MixSettings:
        if self.local + self.external == 0:
            raise ValueError("local + external must be at least 1, got 0 + 0: nothing would ever be trained on")
        return self

    @field_validator("policy")
    @classmethod
    def _policy_exists(cls, policy: str) -> str:
        POLICIES.find(policy)
        return policy

    @field_validator("settings", mode="before", json_schema_input_type=dict[str, object])
    @classmethod
    def _settings_of_the_policy(cls, values: object, info: ValidationInfo) -> object:
        """The policy that `policy` names, with these settings."""
        if "policy" not in info.data:
            return Fixed()  # the policy's own validator reports the error
        return POLICIES.find(info.data["policy"]).model_validate(values)
