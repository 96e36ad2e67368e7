"""A node's own groups, a batch a round: made in turns with the updates, or ahead of them.

    draw ──▶ generate ──▶ grade ──▶ batch         a group is graded while the others are still being generated

    max_staleness 0    batch 0 │ update 0 │ batch 1 │ update 1 │ ...
    max_staleness 1    batch 0 │ batch 1  │ batch 2  │ ...         in a thread, which waits for engine and verifier
                               │ update 0 │ update 1 │ ...

Batch n is begun when update n - max_staleness is about to, so that what it is trained on is never older than that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import numpy as np
from msgspec import Struct

from swarm.protocols import RolloutEngine, Verifier
from swarm.reasons import Reason
from swarm.stopwatch import Stopwatch
from swarm.types import Completion, Grade, GradedGroup, Rejection, RolloutGroup, Sampling, TaskRef

MakeGroup = Callable[[TaskRef, Sequence[Completion], Sequence[float], int], RolloutGroup]
"""The next own group: `make(question, completions, rewards, version)`."""


class GradedBatch(Struct, frozen=True):
    """What became of one round's questions, whole: the thread that made it hands it over in one piece."""

    groups: list[GradedGroup]
    """In the order of the questions."""
    failed: Counter[Reason]
    """Questions without answers or grades, by reason."""


class Rollouts:
    """Batches of P questions of a node's stream, answered G times each and graded by its own verifier."""

    def __init__(
        self,
        engine: RolloutEngine,
        verifier: Verifier,
        make: MakeGroup,
        version: Callable[[], int],
        seed: int,
        num_questions: int,
        group_size: int,
        sampling: Sampling,
        max_staleness: int,
    ) -> None:
        """`max_staleness`: batches that may be ahead of the one that was taken last.

        With 1 or more, all but the numbers are used by another thread than the one that takes batches. A group whose
        tokens name no policy version is of the `version` at which its batch began.
        """
        self._engine = engine
        self._verifier = verifier
        self._make_group = make
        self._version = version
        self._seed = seed
        self._num_questions = num_questions
        self._group_size = group_size
        self._sampling = sampling
        self._max_staleness = max_staleness
        self._thread = ThreadPoolExecutor(1, "generation") if max_staleness else None
        self._ahead: dict[int, Future[GradedBatch]] = {}
        """Batches that were begun and not taken, by the position of their first question."""

    def take(self, position: int, stages: Stopwatch) -> GradedBatch:
        """The batch that begins with question `position` of the stream; those that may follow it are begun.

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
        """Begin no more; what is being generated ends when its engine does."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _make(self, position: int, stages: Stopwatch) -> GradedBatch:
        version = self._version()
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
        groups = []
        with stages("grade"):
            for index, (completions, grading) in sorted(graded.items(), key=lambda item: item[0]):
                verdict = grading.result()
                if isinstance(verdict, Rejection):
                    failed[verdict.reason] += 1
                else:
                    group = self._make_group(questions[index].ref, completions, verdict.rewards, version)
                    groups.append(GradedGroup(group, verdict.prompt, verdict.rewards))
        return GradedBatch(groups, failed)
