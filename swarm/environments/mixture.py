"""A run's tasks as one stream of questions."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate

from swarm.environments.config import PythonTask, ReasoningGymTask, TaskConfig
from swarm.environments.digests import draw
from swarm.environments.sources.stored import StoredRows
from swarm.errors import Refusal, TaskError
from swarm.protocols import TaskSource
from swarm.reasons import Reason
from swarm.types import Grade, Question, Rejection, TaskRef

_RESOLUTION = 2**53


def make_source(config: TaskConfig, counts: Counter[str], stored: StoredRows | None = None) -> TaskSource:
    """The source for a configuration; imports only the library that it needs. Raises `TaskError`."""
    if isinstance(config, ReasoningGymTask):
        from swarm.environments.sources.reasoning_gym import ReasoningGymSource

        return ReasoningGymSource(config, counts=counts)
    if isinstance(config, PythonTask):
        from swarm.environments.sources.python import PythonSource

        return PythonSource(config, counts=counts)
    from swarm.environments.sources.hf_datasets import DatasetSource

    return DatasetSource(config, counts=counts, stored=stored)


class TaskMixture:
    """Sources of all tasks, and a weighted choice among them that depends on (seed, index) alone."""

    def __init__(
        self,
        configs: Sequence[TaskConfig],
        lenient: bool = False,
        make: Callable[[TaskConfig, Counter[str]], TaskSource] = make_source,
    ) -> None:
        """Set up every source and import its library.

        Raises `TaskError` when there is none, two share a name, or one cannot be set up; with `lenient`, the latter is
        left out and listed in `skipped`, as long as another remains.
        """
        if not configs:
            raise TaskError("a run needs at least one task, got none")
        self.skipped: dict[str, str] = {}
        """Why each omitted task could not be set up, by name."""
        self.counts: Counter[str] = Counter()
        """`question_failures`: times that a task could not make its question; and the sources' counts."""
        self.sources: dict[str, TaskSource] = {}
        for config in configs:
            if config.name in self.sources:
                raise TaskError(f"two tasks are named {config.name!r}; give one another `name`")
            try:
                self.sources[config.name] = make(config, self.counts)
            except TaskError as error:
                if not lenient:
                    raise
                self.skipped[config.name] = str(error)
        if not self.sources:
            raise TaskError(f"none of the tasks can be set up here: {'; '.join(self.skipped.values())}")
        self._names = tuple(self.sources)
        self._bounds = tuple(accumulate(config.weight for config in configs if config.name in self.sources))

    def question(self, seed: int, index: int, skip: int = 0) -> Question:
        """Question `index` of the stream `seed`.

        If a task fails to make its question, the next in the list takes over; `skip` starts that many tasks later.
        Raises `TaskError` when all of them fail.
        """
        point = draw(_RESOLUTION, "mixture", seed, index) / _RESOLUTION * self._bounds[-1]
        first = min(bisect_right(self._bounds, point), len(self._names) - 1)
        failures = []
        for step in range(skip, len(self._names)):
            source = self.sources[self._names[(first + step) % len(self._names)]]
            try:
                return source.question(seed, index)
            except TaskError as error:
                self.counts["question_failures"] += 1
                failures.append(str(error))
        raise TaskError(
            f"no task could make question {index} of stream {seed}: {'; '.join(failures) or 'every task timed out'}"
        )

    def recall(self, ref: TaskRef) -> Question:
        """The question behind a reference. Raises `Refusal`, with `unknown_task` for a task not listed here."""
        return self._source(ref).recall(ref)

    def grade(self, ref: TaskRef, texts: Sequence[str]) -> Grade | Rejection:
        """Grade one group; a refused reference is a result, not an error."""
        try:
            prompt = self.recall(ref).prompt
            source = self._source(ref)
            return Grade(prompt, tuple(source.score(ref, text) for text in texts))
        except Refusal as refusal:
            return Rejection(refusal.reason, refusal.detail)

    def _source(self, ref: TaskRef) -> TaskSource:
        if ref.task not in self.sources:
            raise Refusal(Reason.UNKNOWN_TASK, f"{ref.task!r} is not among {', '.join(self._names)}")
        return self.sources[ref.task]
