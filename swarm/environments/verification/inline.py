"""A verifier without processes, for simulations and tests: works in the calling thread."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from swarm.environments.config import TaskConfig
from swarm.environments.mixture import TaskMixture
from swarm.types import Actions, Grade, Question, Rejection, TaskRef


class InlineVerifier:
    """Implements `TaskVerifier` without a time limit, so not for foreign groups: a scorer that hangs blocks the caller.

    A few data sets iterate over a set of strings, so that their questions depend on PYTHONHASHSEED; the pool's workers
    set it to 0.
    """

    def __init__(self, configs: Sequence[TaskConfig]) -> None:
        """Set up the tasks. Raises `TaskError`."""
        self._mixture = TaskMixture([config.from_anywhere() for config in configs])
        self._done: list[tuple[str, Grade | Rejection]] = []

    def draw(self, seed: int, start: int, count: int, task: str = "") -> list[Question]:
        """Questions `start .. start + count - 1` of stream `seed`: of one task, or of the weighted mixture of all."""
        return [self._mixture.question(seed, index, task=task) for index in range(start, start + count)]

    def num_held_out(self, task: str) -> int | None:
        """Questions of a task's held-out streams before one repeats; None when there is no end."""
        return self._mixture.num_held_out(task)

    def grade(self, jobs: Sequence[tuple[TaskRef, Sequence[Actions]]]) -> list[Grade | Rejection]:
        """Grade groups: one result per job, in order."""
        return [self._mixture.grade(ref, texts) for ref, texts in jobs]

    def begin_grading(self, ref: TaskRef, texts: Sequence[Actions]) -> Future[Grade | Rejection]:
        """Grade a group now."""
        verdict: Future[Grade | Rejection] = Future()
        verdict.set_result(self._mixture.grade(ref, texts))
        return verdict

    def replay(self, ref: TaskRef, actions: Actions) -> Future[Grade | Rejection]:
        """An own episode so far. See `Verifier`."""
        return self.begin_grading(ref, [actions])

    def submit(self, key: str, ref: TaskRef, texts: Sequence[Actions], sender: str = "") -> None:
        """Grade a group now; `collect` returns the result."""
        self._done.append((key, self._mixture.grade(ref, texts)))

    def collect(self) -> list[tuple[str, Grade | Rejection]]:
        """Results since the last call, by key."""
        done, self._done = self._done, []
        return done

    def counters(self) -> dict[str, int]:
        """Cumulative counts of the mixture and its sources."""
        return dict(self._mixture.counts)

    def close(self) -> None:
        """Nothing to stop."""
