"""The mixing policies, and the settings of the mix.

`auto` chooses questions, own and others' groups of a round together, for the most progress a second. The progress of an
update on n groups, dealt to s optimizer steps, of mean worth w in own groups, where noise dominates the gradient:

    P(n, w) = w sqrt(n s),  s = min(update.minibatches, n)    (progress in swarm/sapo/worth.py, with its noise alone)

and its seconds, from the stages of the last rounds:

    T = asked x seconds a question + (part of an own group x own + part x external) x seconds a whole group trained
        + external x seconds a mixed group + the rest

where `part` of a group's completions is computed by an update: those that count in it, equal ones once.

At the mix the questions are asked: others' groups are added, those of most worth first, as long as the progress of one
more exceeds what its seconds bring at the usual rate, that of the last rounds with others' groups or without them.
Before the next round the number of questions is chosen as if all others would choose alike, so that others' groups come
in proportion to it: if each counted on the others instead, nobody would ask.
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
from swarm.sapo.mixing.base import MAX_ROUNDS, Candidate, Decision, History, MixPolicy, MixRound
from swarm.settings import Settings

OWN = UNKNOWN = 1.0
"""Worth of an own group, and of a group whose sender's worth is unknown."""
EXPLORE_SHARE = 0.02
"""Fraction of the seconds for groups of others that promise nothing: their worth may have changed."""
RATE_ROUNDS = 64
"""Rounds of the usual rate: where groups are rare, fewer say little."""
CLEARLY = 1.03
"""A change of the number of questions must promise so much more progress a second."""
LEAST_S = 1e-6
"""A round takes at least this."""
ASK_RANGE = (0.25, 2.0)
"""Least and most questions, in those configured."""


class Costs(Struct, frozen=True):
    """Seconds of a round by what they pay for."""

    question: float
    """Drawn, answered and graded."""
    mixed: float
    """One more group of others in the update, before it is trained on: screened and compared."""
    trained: float
    """One more group in the update of which every completion is computed."""
    own: float
    """Fraction of `trained` that an own group takes."""
    part: float
    """The same of a group of others."""
    rest: float
    """Whatever a round takes without these, receiving included: it is paid before the mix."""

    @classmethod
    def of(cls, rounds: Sequence[MixRound]) -> Costs | None:
        """Those of the timed rounds but the first, which also compiles and warms up; None without one that trained."""
        rounds = [each for each in rounds if each.seconds and each.num_questions][1:]
        external = [each.num_external for each in rounds]
        local = [each.num_local for each in rounds]
        own = fmean([each.local_part for each in rounds], local) if any(local) else 1.0
        part = fmean([each.external_part for each in rounds], external) if any(external) else 1.0
        trained = [each.local_part * each.num_local + each.external_part * each.num_external for each in rounds]
        if not any(trained):
            return None
        stages = {stage: [each.seconds[stage] for each in rounds] for stage in ("asking", "receiving", "mix", "update")}
        asked = [each.num_questions for each in rounds]
        question = _each(stages["asking"], asked)
        mixed = _each(stages["mix"], external)
        update = _each(stages["update"], trained)
        counted = question * sum(asked) + mixed * sum(external) + update * sum(trained)
        rest = sum(map(sum, stages.values())) - counted
        return cls(question, mixed, update, own, part, rest / len(rounds))

    def seconds(self, asked: float, own: float, external: float) -> float:
        """Seconds of a round."""
        trained = self.own * own + self.part * external
        return max(LEAST_S, self.rest + asked * self.question + trained * self.trained + external * self.mixed)

    def of_candidate(self, candidate: Candidate) -> float:
        """Seconds of this one in an update."""
        return max(LEAST_S, self.mixed + candidate.part * self.trained)


def _each(seconds: Sequence[float], counts: Sequence[float]) -> float:
    """Seconds for one more: the slope of the rounds' seconds over their counts, at most the seconds over the counts."""
    mean, mean_count = fmean(seconds), fmean(counts)
    spread = sum((count - mean_count) ** 2 for count in counts)
    if not mean_count:
        return 0.0
    if not spread:
        return mean / mean_count
    slope = sum((count - mean_count) * (each - mean) for count, each in zip(counts, seconds, strict=True)) / spread
    return min(max(0.0, slope), mean / mean_count)


class Auto(MixPolicy):
    """The questions of a round, and others' groups beside own ones in an update of at most I + J, for the most progress
    a second.

    A group of unknown worth counts as an own one. Groups of more worth than own ones come before them, up to `most` of
    the slots. A candidate's weight is the product of those of `advantage`, `edge` and `worth`, divided by its seconds.
    The number of questions stays between a quarter and twice of those configured.

    Others' part halves when the mean own reward has fallen clearly below its best while external groups were used; only
    later rounds count for the next best. Otherwise it rises back to all.
    """

    needs_advantages: ClassVar[bool] = True
    window_rounds: int = Field(20, ge=2, le=MAX_ROUNDS)
    """Rounds over which own rewards, own success, signal and seconds are measured."""
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
        costs = Costs.of(history.rounds)
        weights = [
            difficulty * mean_magnitude(candidate) * worth / (costs.of_candidate(candidate) if costs else 1.0)
            for candidate, difficulty, worth in zip(candidates, difficulties, worths, strict=True)
        ]
        caution = self._caution(history)
        usable = [worth for worth, weight in zip(worths, weights, strict=True) if weight > 0]
        *before, this = history.rounds[-self.window_rounds :]
        own = this.num_informative
        rounds = [*before, replace(this, num_candidates=len(usable))]
        external = self._external(history, usable, costs)
        if not external and usable and own < history.total and costs is not None and _is_due(history.rounds, costs):
            external = 1
        reason = f"{own} own group{'s' * (own != 1)} with signal, {external} of {len(candidates)} others' wanted"
        if caution.factor < 1:
            external = math.floor(caution.factor * external + 0.5)
            reason += f"; {caution.factor:.0%} of them after a drawdown"
        asks, why = self._questions(history, rounds, fmean(usable) if usable else 0.0, costs)
        return Decision(
            history.total - external, external, weights, reason + why, to_builtins(caution), num_questions=asks
        )

    def _external(self, history: History, worths: Sequence[float], costs: Costs | None) -> int:
        """J for candidates of these worths, after this round's own groups."""
        slots, own = history.total, history.rounds[-1].num_informative
        usual = _usual_rate(history, fmean(worths) if worths else 0.0, costs) if costs else 0.0

        def gain(kept: int, total: float, external: int) -> float:
            """Progress beyond what the same seconds are worth otherwise."""
            progress = _progress(kept + external, kept + total, history.num_steps)
            return progress - (usual * costs.seconds(0, kept, external) if costs else 0.0)

        best, highest = 0, gain(min(own, slots), 0.0, 0)
        total = 0.0
        for external, worth in enumerate(sorted(worths, reverse=True)[:slots], 1):
            total += worth
            kept = min(own, slots - external)
            if kept < own and (worth <= OWN or external > self.most * slots):
                break
            if (found := gain(kept, total, external)) > highest:
                best, highest = external, found
        return best

    def _questions(
        self, history: History, rounds: Sequence[MixRound], worth: float, costs: Costs | None
    ) -> tuple[int | None, str]:
        """Questions of the next round, and why they are not those configured; None where they are not to be chosen."""
        usual = history.num_questions
        rounds = [each for each in rounds if each.num_questions]
        if not usual or costs is None or not any(each.num_informative for each in rounds):
            return None, ""
        asked = sum(each.num_questions for each in rounds)
        signal = sum(each.num_informative for each in rounds) / asked
        supply = _arrived(rounds) / asked

        def rate(questions: int) -> float:
            own = min(questions * signal, history.total)
            others = min(questions * supply, history.total - own)
            return max(
                _progress(own + external, own + worth * external, history.num_steps)
                / costs.seconds(questions, own, external)
                for external in (0.0, others)
            )

        lowest, highest = (max(1, round(part * usual)) for part in ASK_RANGE)
        now = min(max(rounds[-1].num_questions, lowest), highest)  # of another configuration before a restart
        best = max(range(lowest, highest + 1), key=rate)
        if rate(best) < CLEARLY * rate(now):
            best = now
        step = max(1, now // 4)
        best = min(max(best, now - step), now + step)
        if best == usual:
            return best, ""
        if best > usual:
            return best, f"; asks {best} instead of {usual}: groups with signal are rare"
        others = "others give the groups that the rest would" if supply else "its groups fill the update"
        return best, f"; asks {best} instead of {usual}: {others}"

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
    """Fraction of J."""
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


def _progress(groups: float, worth: float, most_steps: int) -> float:
    """Progress of an update on `groups` whose worths sum to `worth`."""
    return worth * math.sqrt(min(most_steps, groups) / groups) if groups else 0.0


def _arrived(rounds: Sequence[MixRound]) -> float:
    """Others' usable groups that came in these rounds, the first one's left out of one more."""
    first, last = rounds[0], rounds[-1]
    used = sum(each.num_external for each in rounds[:-1])
    came = last.num_candidates - first.num_candidates + used
    return max(0.0, came * len(rounds) / max(1, len(rounds) - 1))


def _usual_rate(history: History, worth: float, costs: Costs) -> float:
    """Progress a second in the last rounds with others' groups of this worth, or without them if that is more."""
    rounds = [each for each in history.rounds[-RATE_ROUNDS:] if each.seconds]
    rates = []
    for share in (0, 1):
        groups = [(each.num_local, share * each.num_external) for each in rounds]
        made = sum(_progress(own + others, own + worth * others, history.num_steps) for own, others in groups)
        spent = sum(
            costs.seconds(each.num_questions, own, others) for each, (own, others) in zip(rounds, groups, strict=True)
        )
        rates.append(made / spent if spent else 0.0)
    return max(rates)


def _is_due(rounds: Sequence[MixRound], costs: Costs) -> bool:
    """Whether it is time to try a group of others again."""
    idle = 0.0
    for each in reversed(rounds[:-1]):
        if each.num_external:
            break
        idle += sum(each.seconds.values())
    return idle * EXPLORE_SHARE >= costs.mixed + costs.part * costs.trained > 0


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
        "auto": "swarm.sapo.mixing.policies:Auto",
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
    external_negative_weight: float = Field(0.0, ge=0, le=1)
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
