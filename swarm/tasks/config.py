"""What a node asks: a weighted mixture of tasks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, TypeAdapter

from swarm.settings import Settings

MatchRule = Literal["exact", "numeric", "boxed"]


class RewardSettings(Settings):
    """How a score in [0, 1] becomes a reward."""

    threshold: float | None = Field(0.99, ge=0.0, le=1.0)
    """Reward 1 at or above this score, else 0; `null` gives partial credit, the score itself."""

    def reward(self, score: float) -> float:
        """The reward, in [0, 1], for a score in [0, 1]."""
        if self.threshold is None:
            return score
        return 1.0 if score >= self.threshold else 0.0


class ReasoningGymTask(Settings):
    """A data set of the ReasoningGYM library."""

    kind: Literal["reasoning_gym"] = "reasoning_gym"
    name: str
    """Name in this run; also the library's name for the data set, e.g. `gcd`, unless `dataset` says otherwise."""
    dataset: str | None = None
    """The library's name for the data set when `name` is another, so that one run can hold `gcd` at two difficulties;
    `swarm tasks` lists them."""
    weight: float = Field(1.0, gt=0)
    options: dict[str, JsonValue] = {}
    """Fields of the data set's own configuration, e.g. `max_value: 40`, except `seed` and `size`."""
    reward: RewardSettings = RewardSettings()


class DatasetTask(Settings):
    """A Hugging Face data set: hub id or local files with prompt and answer columns."""

    kind: Literal["dataset"]
    name: str
    """Name in this run; peers agree on it through the manifest."""
    weight: float = Field(1.0, gt=0)
    path: str
    """Hub id, or a local file or folder (json, jsonl, csv, parquet, text)."""
    subset: str | None = None
    split: str = "train"
    revision: str | None = None
    """Hub revision; pin it, or peers may see different rows."""
    prompt: str = "{question}"
    """Column name, or a template with columns in braces."""
    answer: str = "answer"
    """Column name, or a template with columns in braces."""
    answer_pattern: str | None = None
    """Regular expression whose last match (group 1 if it has one) in the answer column is the reference answer."""
    match: MatchRule = "exact"
    """Compare text, numbers, or mathematics in \\\\boxed{}."""
    reward: RewardSettings = RewardSettings()


TaskConfig = Annotated[ReasoningGymTask | DatasetTask, Field(discriminator="kind")]


TASK_LIST: TypeAdapter[tuple[TaskConfig, ...]] = TypeAdapter(tuple[TaskConfig, ...])
"""Reads and writes a list of tasks as JSON."""


class VerificationSettings(Settings):
    """The processes that make questions and grade completions."""

    workers: int = Field(1, ge=1, le=64)
    """One more, for own questions alone, is started when those had to wait for others' a second."""
    time_limit_s: float = Field(10.0, gt=0)
    """A worker that spends longer on one group is killed, the group counted as `verifier_timeout`."""
    memory_limit_bytes: int = Field(4 * 2**30, ge=2**31)
    """Memory of one worker; a completion that makes a scorer allocate more gets reward 0, or its group
    `verifier_crash`. Memory-mapped rows of data sets do not count."""
    queue_groups: int = Field(256, ge=1)
    """Received groups waiting to be graded; beyond it the oldest is dropped and counted."""
