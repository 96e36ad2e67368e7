"""A run's tasks and this node's judge: which fit, and the verifier for them."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.environments.config import TaskConfig, judge_of
from swarm.errors import ConfigError
from swarm.foreign import clean
from swarm.judging.config import JudgeSettings
from swarm.judging.service import JudgeService
from swarm.judging.verifier import JudgingVerifier
from swarm.protocols import TaskVerifier, Verifier

MAX_SHOWN_CHARS = 100


def lacking_judge(tasks: Sequence[TaskConfig], settings: JudgeSettings) -> dict[str, str]:
    """By name: why this node cannot have tasks with a judge; empty if it has one."""
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
    """The verifier, with a judge if tasks need one; it closes `verifier`.

    Raises `ConfigError` when there is none, or it cannot be set up; `verifier` stays open then.
    """
    if not any(judge_of(task) for task in tasks):
        return verifier
    if lacking := lacking_judge(tasks, settings):
        raise ConfigError("; ".join(f"task {name}: {reason}" for name, reason in lacking.items()))
    judge = JudgeService(settings)
    try:
        judge.wait_until_ready()
    except ConfigError:
        judge.close()
        raise
    return JudgingVerifier(verifier, tasks, settings, judge)


def unjudged(verifier: Verifier) -> Verifier:
    """The verifier without a judge, for evaluations: they count answers."""
    return verifier.inner if isinstance(verifier, JudgingVerifier) else verifier
