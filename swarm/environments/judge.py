"""Who gives rewards that no code computes, a judge or a reward service: settings of both, and which tasks need them.

Those who ask them are an extra, `swarm.extras.judging`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from swarm.endpoint import check_url
from swarm.environments.config import TaskConfig
from swarm.errors import ConfigError
from swarm.kinds import extra
from swarm.protocols import TaskVerifier, Verifier
from swarm.sanitize import clean
from swarm.settings import Settings
from swarm.types import MAX_COMPLETIONS

MAX_SHOWN_CHARS = 100
KEY_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"


class RaterSettings(Settings):
    """What a judge and a reward service have in common.

    Groups that are not rated in time, or for which nothing is left of the budget, are left out and counted: the round
    goes on.
    """

    rater: ClassVar[str]
    """The field of the configuration that has these settings; what messages call it is `called`."""
    called: ClassVar[str]

    api_key_env: str | None = Field(None, pattern=KEY_VARIABLE)
    """Environment variable with the server's key, which is written nowhere and sent to no other host."""
    strangers: Literal["judge", "skip"] = "judge"
    """Others' groups of such tasks: have them rated as well, or leave them out as `judge_skipped`."""
    time_limit_s: float = Field(30.0, gt=0, le=3_600)
    """Longest wait for the rewards of a group: beyond it the group is left out as `judge_timeout`."""
    strangers_share: float = Field(0.5, ge=0, le=1)
    """Part of the budget that others' groups may use."""
    queue_groups: int = Field(256, ge=1)
    """Most groups of others that wait; beyond it the oldest of the sender with the most is dropped as
    `verifier_overflow`."""
    cache_scores: int = Field(65_536, ge=1)
    """Replies kept: nothing is asked twice about the same text."""

    @property
    @abstractmethod
    def address(self) -> str | None:
        """The server's address; None without a server."""

    @property
    @abstractmethod
    def is_there(self) -> bool:
        """Whether this node has one."""

    @property
    @abstractmethod
    def queries_at_once(self) -> int:
        """Most queries that are asked together."""

    @property
    @abstractmethod
    def queries_per_group(self) -> int:
        """Most queries about one group."""

    @property
    @abstractmethod
    def per_hour(self) -> tuple[int | None, int | None]:
        """The budget: queries, and tokens."""

    @abstractmethod
    def lacking(self, part: Any) -> str:
        """What to set for a reward that needs one."""


class JudgeSettings(RaterSettings):
    """The model that this node asks for rewards of the kind `judge`; its tasks say what it is asked."""

    rater = "judge"
    called = "the judge"

    model: str | None = Field(None, min_length=1, max_length=512)
    """The judge: its name at the endpoint, or without `endpoint` a hub id or local directory of a transformers model,
    loaded in a separate process. Default: none; the run's tasks with a judge are left out."""
    endpoint: str | None = Field(None, max_length=2_048)
    """Address of an OpenAI-compatible server, such as vLLM's: `http://127.0.0.1:8000/v1`. One on this machine is never
    asked through a proxy."""
    device: str = "auto"
    """Device of a judge without `endpoint`; see `policy.device`."""
    requests_at_once: int = Field(16, ge=1, le=1_024)
    """Requests in flight at the endpoint, or prompts in a batch."""
    requests_per_group: int = Field(256, ge=1)
    """Most requests for one group; `pairs` needs G (G - 1) of them with both orders."""
    requests_per_hour: int | None = Field(None, ge=0)
    """Budget in any hour; beyond it groups are left out as `judge_budget`. Default: none."""
    tokens_per_hour: int | None = Field(None, ge=0)
    """The same for tokens of prompts and replies, as the endpoint counts them, else a fourth of the characters."""

    @property
    def address(self) -> str | None:
        """See `RaterSettings`."""
        return self.endpoint

    @property
    def is_there(self) -> bool:
        """See `RaterSettings`."""
        return self.model is not None

    @property
    def queries_at_once(self) -> int:
        """See `RaterSettings`."""
        return self.requests_at_once

    @property
    def queries_per_group(self) -> int:
        """See `RaterSettings`."""
        return self.requests_per_group

    @property
    def per_hour(self) -> tuple[int | None, int | None]:
        """See `RaterSettings`."""
        return self.requests_per_hour, self.tokens_per_hour

    def lacking(self, part: Any) -> str:
        """See `RaterSettings`."""
        model = clean(part.model, MAX_SHOWN_CHARS)
        return f"its rewards need a judge, {model}: set judge.model, and judge.endpoint unless it is to run here"

    @model_validator(mode="after")
    def _the_key_stays_secret(self) -> JudgeSettings:
        check_url("endpoint", self.endpoint, self.api_key_env)
        return self


class RewardServiceSettings(RaterSettings):
    """The service that this node asks over HTTP for rewards of the kind `http`."""

    rater = "reward_service"
    called = "the reward service"

    url: str | None = Field(None, max_length=2_048)
    """Address to which requests are posted, such as `http://127.0.0.1:9000/rewards`. One on this machine is never asked
    through a proxy. Default: none; the run's tasks with an `http` reward are left out."""
    batch: int = Field(64, ge=1, le=1_024)
    """Most completions in a request."""
    requests_at_once: int = Field(4, ge=1, le=64)
    """Requests in flight."""
    completions_per_hour: int | None = Field(None, ge=0)
    """Budget in any hour; beyond it groups are left out as `judge_budget`. Default: none."""

    @property
    def address(self) -> str | None:
        """See `RaterSettings`."""
        return self.url

    @property
    def is_there(self) -> bool:
        """See `RaterSettings`."""
        return self.url is not None

    @property
    def queries_at_once(self) -> int:
        """See `RaterSettings`."""
        return self.batch * self.requests_at_once

    @property
    def queries_per_group(self) -> int:
        """See `RaterSettings`."""
        return MAX_COMPLETIONS

    @property
    def per_hour(self) -> tuple[int | None, int | None]:
        """See `RaterSettings`."""
        return self.completions_per_hour, None

    def lacking(self, part: Any) -> str:
        """See `RaterSettings`."""
        return f"its rewards need a service, {clean(part.model, MAX_SHOWN_CHARS)}: set reward_service.url"

    @model_validator(mode="after")
    def _the_key_stays_secret(self) -> RewardServiceSettings:
        check_url("url", self.url, self.api_key_env)
        return self


Raters = Sequence[RaterSettings]
"""Those of a node, whether it has them or not."""


def rated_part(config: TaskConfig, rater: str) -> Any:
    """The reward of a task for which this rater is asked, such as `JudgeReward`; None without one."""
    return next((part for part in config.rewards if part.rater == rater), None)


def lacking_raters(tasks: Sequence[TaskConfig], raters: Raters) -> dict[str, str]:
    """Why this node cannot have tasks with such rewards, by task; empty if it can."""
    return {
        task.name: settings.lacking(part)
        for settings in raters
        if not settings.is_there
        for task in tasks
        if (part := rated_part(task, settings.rater)) is not None
    }


def other_judges(tasks: Sequence[TaskConfig], settings: JudgeSettings) -> list[str]:
    """Which tasks name another judge than this node asks; their rewards may differ from other members'."""
    return [
        f"task {task.name}: its judge is {clean(part.model, MAX_SHOWN_CHARS)}, but judge.model is {settings.model}"
        for task in tasks
        if (part := rated_part(task, "judge")) is not None and settings.model not in (None, part.model)
    ]


def with_raters(verifier: TaskVerifier, tasks: Sequence[TaskConfig], raters: Raters) -> TaskVerifier:
    """The verifier, with those that tasks need, which then closes `verifier`.

    Raises `ConfigError` when one is missing or cannot be set up; `verifier` stays open then.
    """
    if lacking := lacking_raters(tasks, raters):
        raise ConfigError("; ".join(f"task {name}: {reason}" for name, reason in lacking.items()))
    needed = [each for each in raters if any(rated_part(task, each.rater) for task in tasks)]
    return extra("judging.verifier").open_raters(verifier, tasks, needed) if needed else verifier


def unjudged(verifier: Verifier) -> Verifier:
    """The verifier without a judge or service, for evaluations: they count answers."""
    while (inner := getattr(verifier, "without_rater", None)) is not None:
        verifier = inner
    return verifier
