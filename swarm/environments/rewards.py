"""Settings of a task's named rewards. Each is in [0, 1], and the reward of an episode is their weighted mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from swarm.environments.pattern_bounds import MAX_RE2_CHARS, check_pattern
from swarm.settings import Settings
from swarm.types import ANSWER

MAX_REWARDS = 8
MAX_REWARD_NAME_CHARS = 32
MAX_RUBRIC_CHARS = 8_192
MAX_JUDGED_CHARS = 65_536

RewardName = Annotated[str, Field(pattern=rf"^[a-z][a-z0-9_]{{0,{MAX_REWARD_NAME_CHARS - 1}}}$")]
Tag = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,31}$")]
RewardWeight = Annotated[float, Field(ge=0, le=1e6)]


class AnswerReward(Settings):
    """What the task itself gives: for the answer, after the task's `reward`; in an environment, the return."""

    kind: Literal["answer"]
    name: Literal["answer"] = ANSWER
    """Name in figures and samples."""
    weight: RewardWeight = 1.0
    """Share in the mean; 0 only reports the reward."""


class FormatReward(Settings):
    """1 for a completion of the right form, else 0. Of an episode, the last turn counts."""

    kind: Literal["format"]
    name: RewardName = "format"
    """Name in figures and samples."""
    weight: RewardWeight = 1.0
    """As in `kind: answer`."""
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


class OverlongReward(Settings):
    """DAPO's soft punishment of long completions, plus 1: 1 up to `max_chars - cache_chars` characters, then falling
    linearly to 0 at `max_chars`. Source: arXiv:2503.14476, eq. 13.

    In characters instead of tokens: the members of a run have different tokenizers, and must agree. In an episode, all
    turns of the policy count together, and nothing that it was told.
    """

    kind: Literal["overlong"]
    name: RewardName = "overlong"
    """Name in figures and samples."""
    weight: RewardWeight = 1.0
    """As in `kind: answer`. DAPO's sum, with 1 or -1 for the answer, is a weight of 0.5 beside 1 for the answer."""
    max_chars: int = Field(ge=1, le=2**24)
    """Characters from which the reward is 0."""
    cache_chars: int = Field(ge=1, le=2**24)
    """Length of the interval in which it falls."""

    @model_validator(mode="after")
    def _the_interval_begins_above_zero(self) -> OverlongReward:
        if self.cache_chars > self.max_chars:
            raise ValueError(f"cache_chars must be at most max_chars, got {self.cache_chars} > {self.max_chars}")
        return self


class JudgeReward(Settings):
    """What another model thinks of a completion, or of all that the policy said in an episode.

    Each node that grades a group asks the judge of its own settings `judge`.
    """

    kind: Literal["judge"]
    name: RewardName = "judge"
    """Name in figures and samples."""
    weight: RewardWeight = 1.0
    """As in `kind: answer`."""
    model: str = Field(min_length=1, max_length=256)
    """The model that should judge. A node whose `judge.model` is another is told so when it starts."""
    rubric: str = Field(min_length=1, max_length=MAX_RUBRIC_CHARS)
    """What makes an answer good, for the judge."""
    mode: Literal["points", "pairs"] = "points"
    """`points`: each completion gets 0 to `most` points. `pairs`: completions of a group are compared two at a time,
    and get the fraction of comparisons that they win; a draw is half a win."""
    most: int = Field(10, ge=1, le=100)
    """Most points."""
    orders: Literal["both", "one"] = "both"
    """Show each pair in both orders, because judges prefer a place; or in one order, drawn from the texts, for half of
    the requests."""
    tolerance: float = Field(0.0, ge=0, le=1)
    """Noise of the judge: if its rewards of a group differ by no more than this, they count as equal."""
    max_chars: int = Field(8_000, ge=1, le=MAX_JUDGED_CHARS)
    """Characters of a completion, and of the question, that the judge sees; of longer ones beginning and end."""
    max_new_tokens: int = Field(256, ge=8, le=4_096)
    """Length limit of the judge's reply."""
    temperature: float = Field(0.0, ge=0, le=2)
    """Sampling temperature of the judge."""


RewardPart = Annotated[AnswerReward | FormatReward | OverlongReward | JudgeReward, Field(discriminator="kind")]


class RewardedTask(Settings):
    """A task whose reward may be combined from several."""

    rewards: tuple[RewardPart, ...] = Field((), max_length=MAX_REWARDS)
    """Named rewards, each in [0, 1], whose weighted mean is an episode's reward: of the kinds `answer`, `format`,
    `overlong` and `judge`. Default: the answer's alone."""

    @property
    def combines_as(self) -> tuple[Mapping[str, JsonValue], ...]:
        """What distinguishes the rewards from the default, for digests; empty for the default."""
        return ({"rewards": [part.model_dump(mode="json") for part in self.rewards]},) if self.rewards else ()

    @model_validator(mode="after")
    def _the_rewards_can_be_combined(self) -> RewardedTask:
        check_rewards(self.rewards)
        return self


def check_rewards(rewards: Sequence[RewardPart]) -> None:
    """Raises `ValueError` for rewards that cannot be combined."""
    doubled = [name for name, count in Counter(part.name for part in rewards).items() if count > 1]
    if doubled:
        raise ValueError(f"rewards must have different names, got {', '.join(doubled)} more than once")
    if sum(isinstance(part, JudgeReward) for part in rewards) > 1:
        raise ValueError("a task has at most one reward of the kind judge: put all criteria into its rubric")
    if rewards and not any(part.weight for part in rewards):
        raise ValueError("at least one of the rewards must have a weight above 0")
