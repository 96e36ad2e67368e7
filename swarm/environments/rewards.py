"""Named rewards of a task: each is in [0, 1], and the reward of an episode is their weighted mean.

They are pure functions on untrusted text, in linear time, but for those of a judge or a service.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, model_validator

from swarm.environments.code import code_digest
from swarm.kinds import Kinds
from swarm.settings import Settings
from swarm.types import ANSWER, Actions, Observation, StepReward, by_turn
from swarm.types.thoughts import answer_of, thought_of

MAX_REWARD_NAME_CHARS = 32
MAX_RE2_CHARS = 256
MAX_RE2_SIZE = 1_024
"""Limit of the characters of a pattern, times all its counts such as 3 in `{1,3}`: a bound on its automaton."""

_COUNT = re.compile(r"\{(\d+)(?:,(\d*))?\}")

RewardName = Annotated[str, Field(pattern=rf"^[a-z][a-z0-9_]{{0,{MAX_REWARD_NAME_CHARS - 1}}}$")]
Tag = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,31}$")]
RewardWeight = Annotated[float, Field(ge=0, le=1e6)]
Scorer = Callable[[Actions], float]
"""The reward of one completion, in [0, 1]."""
Parts = dict[str, tuple[float, ...]]
"""[G] rewards of a group's completions by name, each in [0, 1]."""


class NamedReward(Settings):
    """A kind of reward, with its settings."""

    rater: ClassVar[str] = ""
    """The field of the configuration that says whom the node asks for it, after the episode was replayed: `judge` or
    `reward_service`; empty: nobody."""

    kind: str
    name: RewardName
    """Name in figures and samples."""
    weight: RewardWeight = 1.0
    """Share in the mean; 0 only reports the reward."""

    def scorer(self) -> Scorer | None:
        """The function from a completion to its reward; None where it does not follow from the completion alone.

        Raises `TaskError`.
        """
        return None

    def import_libraries(self) -> None:
        """Import what the scorer needs, before the sandbox is sealed."""

    @property
    def in_digest(self) -> dict[str, JsonValue]:
        """What members of a run must agree on: the settings, and a custom kind's code. Raises `TaskError`."""
        settings: dict[str, JsonValue] = self.model_dump(mode="json")
        if REWARDS.is_built_in(self.kind):
            return settings
        return {**settings, "kind": type(self).__name__, "code": code_digest(REWARDS.resolved(self.kind))}


class AnswerReward(NamedReward):
    """What the task itself gives: for the answer, after the task's `reward`; in an environment, the return."""

    kind: Literal["answer"]
    name: Literal["answer"] = ANSWER
    """Name in figures and samples."""
    weight: RewardWeight = 1.0
    """Share in the mean; 0 only reports the reward."""


class FormatReward(NamedReward):
    """1 for a completion of the right form, else 0. Of an episode, the last turn counts."""

    kind: Literal["format"]
    name: RewardName = "format"
    """Name in figures and samples."""
    tags: tuple[Tag, ...] = Field((), max_length=8)
    """The completion consists of these pairs of tags in this order, each once, with nothing but white space around
    them: `[think, answer]`. The first of several may lack its opening tag, which the chat templates of many thinking
    models write before the completion begins."""
    pattern: str | None = Field(None, max_length=MAX_RE2_CHARS)
    """Instead of `tags`: a regular expression in RE2's syntax that matches somewhere in the last 4,096 characters."""

    @model_validator(mode="after")
    def _there_is_one_rule(self) -> FormatReward:
        if bool(self.tags) == (self.pattern is not None):
            raise ValueError(f"a format has either tags or a pattern, got {self.tags} and {self.pattern!r}")
        check_pattern("pattern", self.pattern or "")
        return self

    def scorer(self) -> Scorer:
        """Whether the last turn has the form."""
        if self.pattern is None:
            return lambda completion: has_tags(self.tags, by_turn(completion)[-1])
        # pyarrow takes 60 MB, which only patterns need
        from swarm.environments.scoring.patterns import LinearPattern

        pattern = LinearPattern(self.pattern)
        return lambda completion: 0.0 if pattern.last(by_turn(completion)[-1]) is None else 1.0

    def import_libraries(self) -> None:
        """The library for regular expressions."""
        if self.pattern:
            import swarm.environments.scoring.patterns  # noqa: F401


class OverlongReward(NamedReward):
    """DAPO's soft punishment of long completions, plus 1: 1 up to `max_chars - cache_chars` characters, then falling
    linearly to 0 at `max_chars`. Source: arXiv:2503.14476, eq. 13.

    In characters instead of tokens: the members of a run have different tokenizers, and must agree. In an episode, all
    turns of the policy count together, observations not.
    """

    kind: Literal["overlong"]
    name: RewardName = "overlong"
    """Name in figures and samples."""
    weight: RewardWeight = 1.0
    """Share in the mean. DAPO's sum, with 1 or -1 for the answer, is a weight of 0.5 beside 1 for the answer."""
    part: Literal["all", "thought", "answer"] = "all"
    """Which part of each turn counts: the thought, the answer after it, or both."""
    max_chars: int = Field(ge=1, le=2**24)
    """Characters from which the reward is 0."""
    cache_chars: int = Field(ge=1, le=2**24)
    """Length of the interval in which it falls."""

    @model_validator(mode="after")
    def _the_interval_begins_above_zero(self) -> OverlongReward:
        if self.cache_chars > self.max_chars:
            raise ValueError(f"cache_chars must be at most max_chars, got {self.cache_chars} > {self.max_chars}")
        return self

    def scorer(self) -> Scorer:
        """The length of all turns of an episode together, as a reward."""
        return lambda completion: overlong(self, completion)


REWARDS: Kinds[type[NamedReward]] = Kinds(
    "reward",
    "swarm.rewards",
    "swarm.environments.rewards:NamedReward",
    {
        "answer": "swarm.environments.rewards:AnswerReward",
        "format": "swarm.environments.rewards:FormatReward",
        "overlong": "swarm.environments.rewards:OverlongReward",
        "judge": "swarm.extras.judging.reward:JudgeReward",
        "http": "swarm.extras.judging.reward:HttpReward",
    },
)
RewardPart = Annotated[NamedReward, REWARDS]
"""A reward of any kind."""


def check_rewards(rewards: Sequence[RewardPart]) -> None:
    """Raises `ValueError` for rewards that cannot be combined."""
    doubled = [name for name, count in Counter(part.name for part in rewards).items() if count > 1]
    if doubled:
        raise ValueError(f"rewards must have different names, got {', '.join(doubled)} more than once")
    raters = [part.rater for part in rewards if part.rater]
    if len(raters) > len(set(raters)):
        raise ValueError(
            "a task has at most one reward of the kind judge and one of http: put all criteria into the rubric, or "
            "have the service combine them"
        )
    if rewards and not any(part.weight for part in rewards):
        raise ValueError("at least one of the rewards must have a weight above 0")


def check_pattern(field: str, pattern: str) -> None:
    """Raises `ValueError` for a pattern whose automaton may be large."""
    size = len(pattern) * math.prod(max(1, int(low), int(high or 1)) for low, high in _COUNT.findall(pattern))
    if size > MAX_RE2_SIZE:
        raise ValueError(
            f"{field}'s characters times its counts must be at most {MAX_RE2_SIZE}, got {size}; "
            "write + or * instead of large counts"
        )
    if found := re.search(r"\\[pPC]", pattern):
        raise ValueError(f"{field} must not have {found[0]}: it stands for hundreds of ranges, or for a byte")


class Combination:
    """The named rewards of one task, without those of a judge or a service."""

    def __init__(self, rewards: Sequence[RewardPart]) -> None:
        """Raises `TaskError` for a pattern that is not valid."""
        self._rewards = tuple(rewards)
        self._scorers = {part.name: scorer for part in rewards if (scorer := part.scorer()) is not None}

    @property
    def answers_share(self) -> float:
        """The weight of the task's own reward in the mean, in [0, 1]."""
        own = sum(part.weight for part in self._rewards if isinstance(part, AnswerReward))
        return own / sum(part.weight for part in self._rewards)

    def rewards(self, completions: Sequence[Actions], answers: Sequence[float]) -> tuple[tuple[float, ...], Parts]:
        """[G] the weighted mean, and the rewards by name; `answers` [G] are the task's own."""
        found: Parts = {}
        for part in self._rewards:
            if isinstance(part, AnswerReward):
                found[part.name] = tuple(answers)
            elif part.name in self._scorers:
                found[part.name] = tuple(map(self._scorers[part.name], completions))
        return weighted_mean(self._rewards, found, len(completions)), found

    def credited(self, observations: Sequence[Observation]) -> tuple[Observation, ...]:
        """Observations whose step rewards are a part of the mean, as they are of the task's own reward."""
        share = self.answers_share
        return tuple(
            tuple(StepReward(part.reward * share) if isinstance(part, StepReward) else part for part in observation)
            for observation in observations
        )


def weighted_mean(rewards: Sequence[RewardPart], parts: Mapping[str, Sequence[float]], size: int) -> tuple[float, ...]:
    """[G = size] the weighted mean of those rewards that `parts` has, in [0, 1]; zeros if none of them has a weight."""
    weights = {part.name: part.weight for part in rewards if part.name in parts}
    total = sum(weights.values())
    if not total:
        return (0.0,) * size
    sums = (sum(weight * parts[name][k] for name, weight in weights.items()) for k in range(size))
    return tuple(min(1.0, each / total) for each in sums)


def names_of(rewards: Sequence[RewardPart]) -> frozenset[str]:
    """The names of those that `Combination` computes."""
    return frozenset(part.name for part in rewards if not part.rater)


def overlong(part: OverlongReward, completion: Actions) -> float:
    """DAPO's soft punishment plus 1, in [0, 1]; the turns of an episode count together."""
    parts: dict[str, Callable[[str], str]] = {"all": str, "thought": thought_of, "answer": answer_of}
    measured = parts[part.part]
    num_chars = sum(len(measured(turn)) for turn in by_turn(completion))
    return min(1.0, max(0.0, (part.max_chars - num_chars) / part.cache_chars))


def has_tags(tags: Sequence[str], completion: str) -> float:
    """1 if the text consists of these pairs of tags in this order, each once, and white space around them.

    The first opening tag of several may be missing: many chat templates write `<think>` before the completion begins.
    """
    if len(tags) > 1 and f"<{tags[0]}>" not in completion:
        completion = f"<{tags[0]}>{completion}"
    rest = completion
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if completion.count(opening) != 1 or completion.count(closing) != 1:
            return 0.0
        before, _, after = rest.partition(opening)
        _, found, rest = after.partition(closing)
        if before.strip() or not found:
            return 0.0
    return 0.0 if rest.strip() else 1.0
