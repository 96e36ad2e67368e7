"""The mixing policies, and the settings of the mix."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import ClassVar, Literal

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


POLICIES: Kinds[type[MixPolicy]] = Kinds(
    "mixing policy",
    "swarm.mixes",
    "swarm.sapo.mixing:MixPolicy",
    {
        **{each.__name__.lower(): f"{__name__}:{each.__name__}" for each in (Fixed, Advantage, Edge, Novelty, Worth)},
        "auto": "swarm.sapo.mixing.auto:Auto",
    },
)


class MixSettings(Settings):
    """I local + J external groups per update."""

    local: int = Field(4, ge=0)
    """I: local groups per update."""
    external: int = Field(4, ge=0)
    """J: external groups per update."""
    completions_per_group: int | None = Field(None, ge=2)
    """Train on so many completions of each group: those whose rewards vary most, of equal ones rather those of distinct
    text. An update takes less time, and weighs the rarer rewards of a group more. Default: all."""
    policy: str = "fixed"
    """Decides I, J and the candidates' weights in every round, `auto` also the number of questions: `fixed`,
    `advantage`, `edge`, `novelty`, `worth`, `auto`, or the location of a custom one: `file.py:MyMix` or
    `mypackage.mymodule:MyMix`."""
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
