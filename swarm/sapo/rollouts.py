"""A node's own groups, one batch per round: generated in alternation with the updates, or ahead of them.

    draw ──▶ generate ──▶ grade ──▶ batch         a group is graded while the others are still being generated

    max_staleness 0    batch 0 │ update 0 │ batch 1 │ update 1 │ ...
    max_staleness 1    batch 0 │ batch 1  │ batch 2  │ ...         in a thread, which waits for engine and verifier
                               │ update 0 │ update 1 │ ...

Batch n starts when update n - max_staleness is about to start, which bounds its staleness.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import numpy as np
from msgspec import Struct

from swarm.protocols import RolloutEngine, Verifier
from swarm.reasons import Reason
from swarm.stopwatch import Stopwatch
from swarm.types import Completion, Grade, Rejection, Sampling, TaskRef


class Answered(Struct, frozen=True):
    """One question with its completions and their rewards."""

    question: TaskRef
    completions: tuple[Completion, ...]
    """[G]"""
    grade: Grade


class Batch(Struct, frozen=True):
    """The results of one round's questions."""

    answered: list[Answered]
    """In the order of the questions."""
    failed: Counter[Reason]
    """Questions without answers or grades, by reason."""


class Rollouts:
    """Batches of P questions from a node's stream, each with G completions, graded by its own verifier."""

    def __init__(
        self,
        engine: RolloutEngine,
        verifier: Verifier,
        seed: int,
        num_questions: int,
        group_size: int,
        sampling: Sampling,
        max_staleness: int,
    ) -> None:
        """`max_staleness`: batches that may be ahead of the last one taken.

        With 1 or more, another thread than the caller of `take` uses `engine` and `verifier`.
        """
        self._engine = engine
        self._verifier = verifier
        self._seed = seed
        self._num_questions = num_questions
        self._group_size = group_size
        self._sampling = sampling
        self._max_staleness = max_staleness
        self._thread = ThreadPoolExecutor(1, "generation") if max_staleness else None
        self._ahead: dict[int, Future[Batch]] = {}
        """Batches started and not taken, by the position of their first question."""

    def take(self, position: int, stages: Stopwatch) -> Batch:
        """The batch that begins with question `position` of the stream; starts the batches that may be ahead of it.

        Raises what engine and verifier raise.
        """
        if self._thread is None:
            return self._make(position, stages)
        for start in range(position, position + (self._max_staleness + 1) * self._num_questions, self._num_questions):
            if start not in self._ahead:
                self._ahead[start] = self._thread.submit(self._make, start, Stopwatch())
        with stages("wait"):
            return self._ahead.pop(position).result()

    def close(self) -> None:
        """Start no more batches; a running one ends with its engine."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _make(self, position: int, stages: Stopwatch) -> Batch:
        with stages("draw"):
            questions = self._verifier.draw(self._seed, position, self._num_questions)
        prompts = [question.prompt for question in questions]
        seed = int(np.random.SeedSequence([self._seed, position]).generate_state(1)[0])
        graded: dict[int, tuple[tuple[Completion, ...], Future[Grade | Rejection]]] = {}
        failed: Counter[Reason] = Counter()
        with (
            stages("generate"),
            closing(self._engine.stream(prompts, self._group_size, self._sampling, seed)) as finished,
        ):
            for index, answers in finished:
                if isinstance(answers, Rejection):
                    failed[answers.reason] += 1
                else:
                    texts = [completion.text for completion in answers]
                    graded[index] = answers, self._verifier.begin(questions[index].ref, texts)
        answered = []
        with stages("grade"):
            for index, (completions, grading) in sorted(graded.items(), key=lambda item: item[0]):
                verdict = grading.result()
                if isinstance(verdict, Rejection):
                    failed[verdict.reason] += 1
                else:
                    answered.append(Answered(questions[index].ref, completions, verdict))
        return Batch(answered, failed)
