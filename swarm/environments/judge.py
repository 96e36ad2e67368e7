"""The judge that this node asks for rewards of the kind `judge`: its settings, and which tasks need it.

The judge itself is an extra, `swarm.extras.judging`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from swarm.endpoint import check_url
from swarm.environments.config import TaskConfig
from swarm.errors import ConfigError
from swarm.kinds import extra
from swarm.protocols import TaskVerifier, Verifier
from swarm.sanitize import clean
from swarm.settings import Settings

MAX_SHOWN_CHARS = 100


class JudgeSettings(Settings):
    """The model that this node asks for rewards of the kind `judge`; its tasks say what it is asked.

    Groups that the judge has not rated in time, or for which nothing is left of the budget, are left out and counted:
    the round goes on.
    """

    model: str | None = Field(None, min_length=1, max_length=512)
    """The judge: its name at the endpoint, or without `endpoint` a hub id or local directory of a transformers model,
    loaded in a separate process. Default: none; the run's tasks with a judge are left out."""
    endpoint: str | None = Field(None, max_length=2_048)
    """Address of an OpenAI-compatible server, such as vLLM's: `http://127.0.0.1:8000/v1`. One on this machine is never
    asked through a proxy."""
    api_key_env: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Environment variable with the endpoint's key, which is written nowhere."""
    device: str = "auto"
    """Device of a judge without `endpoint`; see `policy.device`."""
    strangers: Literal["judge", "skip"] = "judge"
    """Others' groups of tasks with a judge: ask the judge about them as well, or leave them out as `judge_skipped`."""
    time_limit_s: float = Field(30.0, gt=0, le=3_600)
    """Longest wait for the judge: beyond it a group is left out as `judge_timeout`."""
    requests_at_once: int = Field(16, ge=1, le=1_024)
    """Requests in flight at the endpoint, or prompts in a batch."""
    requests_per_group: int = Field(256, ge=1)
    """Most requests for one group; `pairs` needs G (G - 1) of them with both orders."""
    requests_per_hour: int | None = Field(None, ge=0)
    """Budget in any hour; beyond it groups are left out as `judge_budget`. Default: none."""
    tokens_per_hour: int | None = Field(None, ge=0)
    """The same for tokens of prompts and replies, as the endpoint counts them, else a fourth of the characters."""
    strangers_share: float = Field(0.5, ge=0, le=1)
    """Part of either budget that others' groups may use."""
    queue_groups: int = Field(256, ge=1)
    """Most groups of others that wait for the judge; beyond it the oldest of the sender with the most is dropped as
    `verifier_overflow`."""
    cache_scores: int = Field(65_536, ge=1)
    """Replies kept: the judge is not asked twice about the same text with the same rubric."""

    @model_validator(mode="after")
    def _the_key_stays_secret(self) -> JudgeSettings:
        check_url("endpoint", self.endpoint, self.api_key_env)
        return self


def judge_of(config: TaskConfig) -> Any:
    """The judge among a task's rewards, as `JudgeReward`; None without one."""
    return next((part for part in config.rewards if part.asks_judge), None)


def lacking_judge(tasks: Sequence[TaskConfig], settings: JudgeSettings) -> dict[str, str]:
    """Why this node cannot have tasks with a judge, by task; empty if it has one."""
    if settings.model is not None:
        return {}
    named = {task.name: clean(part.model, MAX_SHOWN_CHARS) for task in tasks if (part := judge_of(task)) is not None}
    return {
        name: f"its rewards need a judge, {model}: set judge.model, and judge.endpoint unless it is to run here"
        for name, model in named.items()
    }


def other_judges(tasks: Sequence[TaskConfig], settings: JudgeSettings) -> list[str]:
    """Which tasks name another judge than this node asks; their rewards may differ from other members'."""
    return [
        f"task {task.name}: its judge is {clean(part.model, MAX_SHOWN_CHARS)}, but judge.model is {settings.model}"
        for task in tasks
        if (part := judge_of(task)) is not None and settings.model not in (None, part.model)
    ]


def with_judge(verifier: TaskVerifier, tasks: Sequence[TaskConfig], settings: JudgeSettings) -> TaskVerifier:
    """The verifier, with a judge if tasks need one, which then closes `verifier`.

    Raises `ConfigError` when there is none, or it cannot be set up; `verifier` stays open then.
    """
    if not any(judge_of(task) for task in tasks):
        return verifier
    if lacking := lacking_judge(tasks, settings):
        raise ConfigError("; ".join(f"task {name}: {reason}" for name, reason in lacking.items()))
    verifier_with_judge: TaskVerifier = extra("judging.verifier").open_judge(verifier, tasks, settings)
    return verifier_with_judge


def unjudged(verifier: Verifier) -> Verifier:
    """The verifier without a judge, for evaluations: they count answers."""
    inner: Verifier = getattr(verifier, "without_judge", verifier)
    return inner
