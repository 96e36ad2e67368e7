"""Settings of evaluation suites, and what they come to in a run with its tasks and sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace
from pydantic import Field, ValidationError

from swarm.environments.config import TaskConfig, TaskName
from swarm.environments.sources.dataset import RowsTask
from swarm.errors import ConfigError
from swarm.evaluation import CORRECT
from swarm.settings import Settings, in_words
from swarm.types import Sampling

SuiteName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]
"""Part of metric names."""


class SuiteSampling(Settings):
    """Where a suite's sampling differs from `generation`; each field's default is `generation`'s value."""

    temperature: float | None = Field(None, gt=0)
    """See `generation`."""
    top_p: float | None = Field(None, gt=0, le=1)
    """See `generation`."""
    top_k: int | None = Field(None, ge=0)
    """See `generation`; 1: greedy decoding."""
    min_p: float | None = Field(None, ge=0, le=1)
    """See `generation`."""
    max_new_tokens: int | None = Field(None, ge=1)
    """Longest completion."""

    def over(self, usual: Sampling) -> Sampling:
        """The `usual` sampling with the values set here."""
        return replace(usual, **self.model_dump(exclude_none=True))


class SuiteSettings(Settings):
    """Held-out questions of some tasks, each answered `k` times: gives `avg@k`, and `pass@1`, `pass@2`, `pass@4`, ...,
    `pass@k`."""

    tasks: tuple[TaskConfig | TaskName, ...] = ()
    """Names of the run's tasks, and items as in `tasks` that are only asked here. Default: all of the run's tasks."""
    split: str | None = None
    """Split of the suite's data sets, in place of each task's own, such as `test` where `train` is trained on."""
    questions: int | None = Field(None, ge=1)
    """Questions of each task. Default: all that are held out, which is every row of a split made for evaluation, such
    as `test` or `validation`, and every tenth of any other. Other kinds of tasks never end and need a number."""
    k: int = Field(1, ge=1, le=256)
    """Completions per question."""
    pass_from: float = Field(CORRECT, gt=0, le=1)
    """Least reward with which a completion counts as right in `pass@k`; in poker 0.51 counts hands that win chips."""
    every_rounds: int | None = Field(None, ge=1)
    """Rounds between evaluations; by default only before the first round and after the last."""
    sampling: SuiteSampling = SuiteSampling()


class Suite(Struct, frozen=True):
    """A suite in a run: what is asked, and how."""

    name: str
    tasks: tuple[TaskConfig, ...]
    questions: int | None
    """Questions of each task; None: all."""
    k: int
    pass_from: float
    every_rounds: int | None
    sampling: Sampling


def suite_in_run(name: str, settings: SuiteSettings, tasks: Sequence[TaskConfig], usual: Sampling) -> Suite:
    """A suite in a run with these tasks, where completions are usually sampled like this.

    Raises `ConfigError` for a task that the run does not have, two tasks of one name, a generated task without a number
    of questions, or a split that the task refuses.
    """
    where = f"evaluation.suites.{name}"
    known = {task.name: task for task in tasks}
    every = [name for name, task in known.items() if task.is_asked]
    chosen = [_task(each, known, where) for each in settings.tasks or every]
    names = [task.name for task in chosen]
    if doubled := sorted({task for task in names if names.count(task) > 1}):
        raise ConfigError(f"{where}.tasks must have different names, got {', '.join(doubled)} more than once")
    endless = [task.name for task in chosen if not isinstance(task, RowsTask)]
    if endless and settings.questions is None:
        raise ConfigError(f"{where}.questions must be a number for tasks that never end: {', '.join(endless)}")
    return Suite(
        name=name,
        tasks=tuple(_of_split(task, settings.split, where) for task in chosen),
        questions=settings.questions,
        k=settings.k,
        pass_from=settings.pass_from,
        every_rounds=settings.every_rounds,
        sampling=settings.sampling.over(usual),
    )


def _task(each: TaskConfig | str, known: Mapping[str, TaskConfig], where: str) -> TaskConfig:
    if not isinstance(each, str):
        return each
    if each not in known:
        raise ConfigError(f"{where}.tasks: the run has no task {each!r}; its tasks are {', '.join(known)}")
    return known[each]


def _of_split(task: TaskConfig, split: str | None, where: str) -> TaskConfig:
    if split is None or not isinstance(task, RowsTask):
        return task
    try:
        return type(task).model_validate({**task.model_dump(), "split": split})
    except ValidationError as error:
        problem = in_words(error.errors()[0]["msg"])
        raise ConfigError(f"{where}.split: task {task.name!r}: {problem}") from error
