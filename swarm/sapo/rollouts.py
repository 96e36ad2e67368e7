"""A node's own groups, one batch per round: generated in alternation with the updates, or ahead of them.

    draw ──▶ generate ──▶ grade ──▶ batch         a group is graded while the others are still being generated
                ▲ turns │                         of episodes; see `swarm/groups/episodes.py`
                └───────┘

    max_staleness 0    batch 0 │ update 0 │ batch 1 │ update 1 │ ...
    max_staleness 1    batch 0 ┐ ┌ batch 2 ...                     in a thread (`Ahead`): a batch flows into the
                          batch 1 ┘        │ batch 3 ...           slots that the one before leaves
                               │ update 0 │ update 1 │ ...

No sequence of batch n begins before update n - max_staleness - 1 is over, which bounds its staleness.

The thread:

    take n ─▶ batches up to n + S may begin        S: max_staleness
    update n is over, and the engine has its weights ─▶ batch n + 1 + S may begin

Batches share the engine's slots in their order: a sequence of a younger one gets a slot that no older one needs
(`swarm/groups/flow.py`). So slots are empty only when the bound holds all further questions back.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from msgspec import Struct

from swarm.groups.building import Member, OwnGroups, with_grade, without_group
from swarm.groups.credit import has_signal
from swarm.groups.episodes import FinishedGroup, Stream, run_episodes
from swarm.groups.flow import BATCHES_A_CALL, Flow, Usage
from swarm.protocols import RolloutEngine, Verifier
from swarm.reasons import Reason
from swarm.sapo.curriculum import Curriculum
from swarm.stopwatch import Stopwatch
from swarm.types import GradedGroup, Question, Rejection


class GradedBatch(Struct, frozen=True):
    """What became of one round's questions, whole: the thread that made it hands it over in one piece."""

    groups: list[GradedGroup]
    """In the order of the questions."""
    failed: Counter[Reason]
    """Questions without answers or grades, by reason."""
    num_questions: int = 0
    """Drawn for it."""
    num_unasked: int = 0
    """Those of them for which there was no time."""
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
        """With a staleness of 1 or more, another thread than the caller of `take_batch` uses engine, verifier and
        `policy`, and the engine takes turns. A group whose tokens name no version gets the policy's at which its batch
        began."""
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

    def take_batch(self, position: int, stages: Stopwatch, num_questions: int | None = None) -> GradedBatch:
        """The batch that begins with question `position` of the stream; those that may be ahead of it begin.

        It has `num_questions`, by default and where batches are ahead as many as planned, and more where it asks on.

        Raises what engine and verifier raise.
        """
        if self._ahead is None:
            return self._asked(position, stages, num_questions or self._plan.num_questions)
        with stages("wait"):
            return self._graded(self._ahead.take_batch(position))

    def updated(self) -> None:
        """The update with the batch taken last is over, and the engine has its weights: one more batch may begin."""
        if self._ahead is not None:
            self._ahead.updated()

    def pause(self) -> None:
        """Begin no more batches until the next `take_batch`."""
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


@dataclass
class Batch:
    """The questions of one round, and what has become of them."""

    version: int = 0
    """The policy's version when it began."""
    questions: list[Question] = field(default_factory=list)
    num_asked: int = 0
    played: dict[int, FinishedGroup] = field(default_factory=dict)
    """Finished groups by index."""
    failed: Counter[Reason] = field(default_factory=Counter)
    first_failure: Rejection | None = None
    slots_busy: float | None = None
    """Share of the slots that was used since the batch before ended."""
    begun: bool = False
    generated: Future[None] = field(default_factory=Future)

    @property
    def num_over(self) -> int:
        """Questions that are answered, or cannot be."""
        return len(self.played) + self.failed.total()

    def note(self, index: int, played: FinishedGroup | Rejection) -> None:
        """What became of one question."""
        if isinstance(played, Rejection):
            self.failed[played.reason] += 1
            self.first_failure = self.first_failure or played
        else:
            self.played[index] = played


class RolloutPlan(Struct, frozen=True, kw_only=True):
    """What a node samples, and when."""

    num_questions: int
    """P: questions of a batch."""
    group_size: int
    """G: completions of a question."""
    draws_per_question: int = 1
    """Questions drawn for each one that is asked, see `Curriculum`."""
    ask_on_s: float = 0.0
    """Seconds of a round in which further batches are asked while no group has signal; without batches ahead only."""
    max_staleness: int = 0
    """Updates that a batch may be ahead of the last one taken."""
    limit_s: float = math.inf
    """After so long in generation a batch ends with what is finished, at least one question."""
    max_sequences: int | None = None
    """Sequences that the engine samples together; None: those of a batch."""
    batches_a_call: int = BATCHES_A_CALL
    """Batches that a call of the engine takes; 1: none begins before the one before has ended."""

    @property
    def slots(self) -> int:
        """Sequences that are sampled together, at most those of a batch."""
        return min(self.num_questions * self.group_size, self.max_sequences or self.num_questions * self.group_size)


class Versioned(Protocol):
    """A policy that is trained."""

    @property
    def version(self) -> int:
        """Updates applied so far."""


class Ahead:
    """Generates the batches of P questions whose turn it is, from the position that is taken next on."""

    def __init__(
        self,
        plan: RolloutPlan,
        me: Member,
        stream: Stream,
        verifier: Verifier,
        curriculum: Curriculum,
        policy: Versioned,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing begins before the first `take_batch`. Another thread than the caller's uses engine, verifier,
        `curriculum`, `policy` and `clock`."""
        self._plan = plan
        self._curriculum = curriculum
        self._policy = policy
        self._clock = clock
        seed = int(np.random.SeedSequence([me.seed]).generate_state(1)[0])

        def new_flow() -> Flow:
            return Flow(stream, verifier, self._more, plan.group_size, me.sampling, seed, plan.slots, clock)

        self._new_flow = new_flow
        self._flow = new_flow()
        self._thread = ThreadPoolExecutor(1, "generation")
        self._lock = threading.Lock()
        """Guards what follows; only the thread changes a batch that has begun."""
        self._running = False
        self._closed = False
        self._batches: dict[int, Batch] = {}
        """Those that were begun or are waited for, by the position of their first question."""
        self._next = 0
        """Position of the batch that is taken next."""
        self._last = -1
        """That of the last batch that may ask questions."""
        self._num_begun = 0
        """Batches begun in this call."""
        self._oldest_since = 0.0
        """When the oldest batch began to be that."""
        self._counted = Usage()
        """When the last batch ended."""

    def take_batch(self, position: int) -> Batch:
        """The batch that begins with question `position` of the stream, generated; waits for it.

        Raises what engine and verifier raise, and gives all batches up that fail with it.
        """
        with self._lock:
            self._next = position
            batch = self._batches.setdefault(position, Batch())
            self._may_begin()
        try:
            batch.generated.result()
        finally:
            with self._lock:
                self._batches = {
                    start: other
                    for start, other in self._batches.items()
                    if start > position and not (other.generated.done() and other.generated.exception())
                }
        with self._lock:
            self._next = position + self._plan.num_questions
        return batch

    def updated(self) -> None:
        """The update with the batch taken last is over, and the engine has its weights."""
        with self._lock:
            self._may_begin()

    def pause(self) -> None:
        """Ask only what the oldest batch in work still needs, until the next `take_batch`."""
        with self._lock:
            self._last = min(self._in_work(), default=self._next - 1)

    def close(self) -> None:
        """Ask nothing more; what is asked ends with its engine."""
        with self._lock:
            self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _may_begin(self) -> None:
        """Let batches begin up to the bound."""
        self._last = self._next + self._plan.max_staleness * self._plan.num_questions
        if not self._running and not self._closed:
            self._running = True
            self._thread.submit(self._run)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._num_begun = 0
                if self._closed or not any(self._may_go_on(start) for start in self._starts()):
                    self._running = False
                    return
            try:
                with closing(self._flow.play()) as over:
                    for number, played in over:
                        self._note(number, played)
                        if self._is_over_time():
                            break
            except BaseException as error:  # raised by `take_batch`
                self._fail(error)

    def _starts(self) -> range:
        return range(self._next, self._last + 1, self._plan.num_questions)

    def _may_go_on(self, start: int) -> bool:
        return start not in self._batches or not self._batches[start].generated.done()

    def _in_work(self) -> list[int]:
        return [start for start, batch in self._batches.items() if batch.begun and not batch.generated.done()]

    def _more(self) -> tuple[int, Question] | None:
        """The next question that may be asked now, with its position in the stream."""
        with self._lock:
            for start in () if self._closed else self._starts():
                batch = self._batches.setdefault(start, Batch())
                if not batch.begun:
                    if self._num_begun == self._plan.batches_a_call:
                        return None
                    self._num_begun += 1
                    if not self._in_work():
                        self._oldest_since = self._clock()
                    batch.begun = True
                    break
                if batch.num_asked < len(batch.questions) and not batch.generated.done():
                    break
            else:
                return None
        if not batch.questions:
            batch.version = self._policy.version
            batch.questions = self._curriculum.draw(start, self._plan.num_questions)
        batch.num_asked += 1
        return start + batch.num_asked - 1, batch.questions[batch.num_asked - 1]

    def _note(self, number: int, played: FinishedGroup | Rejection) -> None:
        with self._lock:
            start = max(start for start in self._in_work() if start <= number)
            batch = self._batches[start]
        batch.note(number - start, played)
        if batch.num_over == len(batch.questions):
            self._end(start)

    def _is_over_time(self) -> bool:
        """End the oldest batch if its time is over; whether it was, so that its sequences must leave their slots."""
        with self._lock:
            start = min(self._in_work(), default=None)
            if start is None or self._clock() < self._oldest_since + self._plan.limit_s:
                return False
            if not self._batches[start].played:
                return False
        self._flow.drop(range(start, start + self._plan.num_questions))
        self._end(start)
        return True

    def _end(self, start: int) -> None:
        usage = self._flow.usage
        with self._lock:
            batch = self._batches[start]
            if start == min(self._in_work()):
                self._oldest_since = self._clock()
        batch.slots_busy, self._counted = usage.since(self._counted), usage
        batch.generated.set_result(None)

    def _fail(self, error: BaseException) -> None:
        self._flow, self._counted = self._new_flow(), Usage()
        with self._lock:
            for start in self._starts():
                batch = self._batches.setdefault(start, Batch())
                if not batch.generated.done():
                    batch.generated.set_exception(error)
