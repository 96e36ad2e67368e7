"""A node's own groups, one batch per round: generated in alternation with the updates, or ahead of them.

    draw ──▶ generate ──▶ grade ──▶ batch         a group is graded while the others are still being generated
                ▲ turns │                         of episodes; see `swarm/groups/episodes.py`
                └───────┘

    max_staleness 0    batch 0 │ update 0 │ batch 1 │ update 1 │ ...
    max_staleness 1    batch 0 │ batch 1  │ batch 2  │ ...         in a thread, which waits for engine and verifier
                               │ update 0 │ update 1 │ ...

Batch n starts when update n - max_staleness is about to start, which bounds its staleness.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import numpy as np
from msgspec import Struct

from swarm.groups.building import with_grade
from swarm.groups.episodes import Played, play
from swarm.groups.lost import without_group
from swarm.protocols import RolloutEngine, Verifier
from swarm.reasons import Reason
from swarm.stopwatch import Stopwatch
from swarm.types import Completion, GradedGroup, Rejection, RolloutGroup, Sampling, TaskRef

MakeGroup = Callable[[TaskRef, Sequence[Completion], Sequence[float], int], RolloutGroup]
"""The next own group: `make(question, completions, rewards, version)`."""


class GradedBatch(Struct, frozen=True):
    """What became of one round's questions, whole: the thread that made it hands it over in one piece."""

    groups: list[GradedGroup]
    """In the order of the questions."""
    failed: Counter[Reason]
    """Questions without answers or grades, by reason."""
    num_unasked: int = 0
    """Questions for which there was no time."""
    problem: str = ""
    """Why none of the questions has a group, in words; empty if one has."""


class Rollouts:
    """Batches of P questions from a node's stream, each with G completions, graded by its own verifier."""

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
        limit_s: float = math.inf,
    ) -> None:
        """`max_staleness`: batches that may be ahead of the last one taken. After `limit_s` of generating a batch ends
        with what is finished, at least one question.

        With 1 or more, another thread than the caller of `take` uses everything but the numbers. A group whose tokens
        name no policy version gets the `version` at which its batch started.
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
        self._limit_s = limit_s
        self._thread = ThreadPoolExecutor(1, "generation") if max_staleness else None
        self._ahead: dict[int, Future[GradedBatch]] = {}
        """Batches started and not taken, by the position of their first question."""

    def take(self, position: int, stages: Stopwatch) -> GradedBatch:
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

    def rest(self) -> None:
        """Give up the batches ahead that have not begun."""
        self._ahead = {start: batch for start, batch in self._ahead.items() if not batch.cancel()}

    def close(self) -> None:
        """Start no more batches; a running one ends with its engine."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _make(self, position: int, stages: Stopwatch) -> GradedBatch:
        version = self._version()
        with stages("draw"):
            questions = self._verifier.draw(self._seed, position, self._num_questions)
        seed = int(np.random.SeedSequence([self._seed, position]).generate_state(1)[0])
        finished: dict[int, Played] = {}
        failed: Counter[Reason] = Counter()
        first: Rejection | None = None
        ends_at = time.monotonic() + self._limit_s
        games = play(self._engine.stream, self._verifier, questions, self._group_size, self._sampling, seed)
        with stages("generate"), closing(games):
            for index, played in games:
                if isinstance(played, Rejection):
                    failed[played.reason] += 1
                    first = first or played
                else:
                    finished[index] = played
                if finished and time.monotonic() >= ends_at:
                    break
        num_unasked = len(questions) - len(finished) - failed.total()
        groups = []
        with stages("grade"):
            for index, played in sorted(finished.items()):
                verdict = played.grading.result()
                if isinstance(verdict, Rejection):
                    failed[verdict.reason] += 1
                    first = first or verdict
                else:
                    group = self._make_group(questions[index].ref, played.completions, verdict.rewards, version)
                    groups.append(with_grade(group, verdict))
        return GradedBatch(groups, failed, num_unasked, "" if groups or first is None else without_group(first))
