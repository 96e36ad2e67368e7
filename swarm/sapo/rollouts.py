"""A node's own groups, one batch per round: generated in alternation with the updates, or ahead of them.

    draw ──▶ generate ──▶ grade ──▶ batch         a group is graded while the others are still being generated
                ▲ turns │                         of episodes; see `swarm/groups/episodes.py`
                └───────┘

    max_staleness 0    batch 0 │ update 0 │ batch 1 │ update 1 │ ...
    max_staleness 1    batch 0 ┐ ┌ batch 2 ...                     in a thread (`ahead.py`): a batch flows into the
                          batch 1 ┘        │ batch 3 ...           slots that the one before leaves
                               │ update 0 │ update 1 │ ...

No sequence of batch n begins before update n - max_staleness - 1 is over, which bounds its staleness.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing

import numpy as np
from msgspec import Struct

from swarm.groups.building import Member, OwnGroups, with_grade, without_group
from swarm.groups.credit import has_signal
from swarm.groups.episodes import run_episodes
from swarm.protocols import RolloutEngine, Verifier
from swarm.reasons import Reason
from swarm.sapo.ahead import Ahead, Batch, RolloutPlan, Versioned
from swarm.sapo.curriculum import Curriculum
from swarm.stopwatch import Stopwatch
from swarm.types import GradedGroup, Rejection


class GradedBatch(Struct, frozen=True):
    """What became of one round's questions, whole: the thread that made it hands it over in one piece."""

    groups: list[GradedGroup]
    """In the order of the questions."""
    failed: Counter[Reason]
    """Questions without answers or grades, by reason."""
    num_questions: int = 0
    """Drawn for it."""
    num_unasked: int = 0
    """Of these, those for which there was no time."""
    problem: str = ""
    """Why none of the questions has a group, in words; empty if one has."""
    slots_busy: float | None = None
    """Share of the engine's slots that was used while it was generated; None where it is not known."""


class Rollouts:
    """Batches of P questions from a node's stream, each with G completions, graded by its own verifier."""

    def __init__(
        self,
        plan: RolloutPlan,
        me: Member,
        engine: RolloutEngine,
        verifier: Verifier,
        policy: Versioned,
        own: OwnGroups,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With a staleness of 1 or more, another thread than the caller of `take` uses engine, verifier and `policy`,
        and the engine takes turns. A group whose tokens name no version gets the policy's at which its batch began.
        """
        self._plan = plan
        self._me = me
        self._engine = engine
        self._verifier = verifier
        self._policy = policy
        self._own = own
        self._clock = clock
        self.curriculum = Curriculum(verifier, me.seed, plan.draws_per_question)
        self._ahead = None
        if plan.max_staleness:
            self._ahead = Ahead(plan, me, engine.stream, verifier, self.curriculum, policy, clock)

    def take(self, position: int, stages: Stopwatch, num_questions: int | None = None) -> GradedBatch:
        """The batch that begins with question `position` of the stream; those that may be ahead of it begin.

        It has `num_questions`, by default and where batches are ahead as many as planned, and more where it asks on.

        Raises what engine and verifier raise.
        """
        if self._ahead is None:
            return self._asked(position, stages, num_questions or self._plan.num_questions)
        with stages("wait"):
            return self._graded(self._ahead.take(position))

    def updated(self) -> None:
        """The update with the batch taken last is over, and the engine has its weights: one more batch may begin."""
        if self._ahead is not None:
            self._ahead.updated()

    def pause(self) -> None:
        """Begin no more batches until the next `take`."""
        if self._ahead is not None:
            self._ahead.pause()

    def close(self) -> None:
        """Start no more batches; a running one ends with its engine."""
        if self._ahead is not None:
            self._ahead.close()

    def _asked(self, position: int, stages: Stopwatch, num_questions: int) -> GradedBatch:
        """A batch, and further ones while no group has signal and there is time."""
        ends_at = self._clock() + self._plan.ask_on_s
        batches: list[GradedBatch] = []
        while not batches or (self._clock() < ends_at and not any(has_signal(g.rewards) for g in batches[-1].groups)):
            generated = self._generated(position + len(batches) * num_questions, stages, num_questions)
            with stages("grade"):
                batches.append(self._graded(generated))
        groups = [group for batch in batches for group in batch.groups]
        return GradedBatch(
            groups,
            sum((batch.failed for batch in batches), Counter()),
            num_questions=len(batches) * num_questions,
            num_unasked=sum(batch.num_unasked for batch in batches),
            problem="" if groups else batches[0].problem,
        )

    def _generated(self, position: int, stages: Stopwatch, num_questions: int) -> Batch:
        batch = Batch(self._policy.version)
        with stages("draw"):
            batch.questions = self.curriculum.draw(position, num_questions)
        seed = int(np.random.SeedSequence([self._me.seed, position]).generate_state(1)[0])
        ends_at = self._clock() + self._plan.limit_s
        games = run_episodes(
            self._engine.stream, self._verifier, batch.questions, self._plan.group_size, self._me.sampling, seed
        )
        with stages("generate"), closing(games):
            for index, played in games:
                batch.note(index, played)
                if batch.played and self._clock() >= ends_at:
                    break
        return batch

    def _graded(self, batch: Batch) -> GradedBatch:
        failed, first = batch.failed.copy(), batch.first_failure
        groups = []
        for index, played in sorted(batch.played.items()):
            verdict = played.grading.result()
            if isinstance(verdict, Rejection):
                failed[verdict.reason] += 1
                first = first or verdict
            else:
                ref = batch.questions[index].ref
                group = self._own.make(ref, played.completions, verdict.rewards, batch.version)
                groups.append(with_grade(group, verdict))
                self.curriculum.note(batch.questions[index], verdict.rewards)
        return GradedBatch(
            groups,
            failed,
            num_questions=len(batch.questions),
            num_unasked=len(batch.questions) - batch.num_over,
            problem="" if groups or first is None else without_group(first),
            slots_busy=batch.slots_busy,
        )
