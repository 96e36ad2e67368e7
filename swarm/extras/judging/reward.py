"""The rewards of the kinds `judge` and `http`: their settings. The verifier asks for them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from swarm.environments.rewards import NamedReward, RewardName, RewardWeight

MAX_RUBRIC_CHARS = 8_192
MAX_JUDGED_CHARS = 65_536


class JudgeReward(NamedReward):
    """What another model thinks of a completion, or of all that the policy said in an episode.

    Each node that grades a group asks the judge in its settings, `judge`.
    """

    rater = "judge"

    kind: Literal["judge"]
    name: RewardName = "judge"
    """Name in figures and samples."""
    weight: RewardWeight = 1.0
    """Share in the mean; 0 only reports the reward."""
    model: str = Field(min_length=1, max_length=256)
    """The model that should judge. A node whose `judge.model` is another warns when it starts."""
    rubric: str = Field(min_length=1, max_length=MAX_RUBRIC_CHARS)
    """What makes an answer good, for the judge."""
    mode: Literal["points", "pairs"] = "points"
    """`points`: each completion gets 0 to `most` points. `pairs`: completions of a group are compared two at a time,
    and get the fraction of comparisons that they win; a draw is half a win."""
    most: int = Field(10, ge=1, le=100)
    """Most points."""
    orders: Literal["both", "one"] = "both"
    """Show each pair in both orders, because judges prefer a position; or in one, drawn from the texts, for half of
    the requests."""
    tolerance: float = Field(0.0, ge=0, le=1)
    """Noise of the judge: if its rewards of a group differ by no more than this, they count as equal."""
    max_chars: int = Field(8_000, ge=1, le=MAX_JUDGED_CHARS)
    """Characters of a completion, and of the question, that the judge sees; of longer ones beginning and end."""
    max_new_tokens: int = Field(256, ge=8, le=4_096)
    """Length limit of the judge's reply."""
    temperature: float = Field(0.0, ge=0, le=2)
    """Sampling temperature of the judge."""


class HttpReward(NamedReward):
    """What a reward model or another service says of a completion, or of all that the policy said in an episode.

    Each node that grades a group asks the service in its settings, `reward_service`.
    """

    rater = "reward_service"

    kind: Literal["http"]
    name: RewardName = "service"
    """Name in figures and samples."""
    weight: RewardWeight = 1.0
    """Share in the mean; 0 only reports the reward."""
    model: str = Field(min_length=1, max_length=256)
    """The reward model that should answer; every request names it, so that a service can have several."""
    worst: float = Field(0.0, ge=-1e6, le=1e6)
    """What the service gives for which the reward is 0; linear from there to `best`."""
    best: float = Field(1.0, ge=-1e6, le=1e6)
    """What the service gives for which the reward is 1; beyond either end nothing changes."""
    max_chars: int = Field(32_000, ge=1, le=MAX_JUDGED_CHARS)
    """Characters of a completion, and of the question, that are sent; of longer ones beginning and end."""

    @model_validator(mode="after")
    def _the_best_is_not_the_worst(self) -> HttpReward:
        if self.best == self.worst:
            raise ValueError(f"best must differ from worst, got {self.best:g} for both")
        return self
