"""Batches that are generated ahead of the updates, in a separate thread.

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

from swarm.groups.building import Member
from swarm.groups.episodes import FinishedGroup, Stream
from swarm.groups.flow import BATCHES_A_CALL, Flow, Usage
from swarm.protocols import Verifier
from swarm.reasons import Reason
from swarm.sapo.curriculum import Curriculum
from swarm.types import Question, Rejection


@dataclass
class Batch:
    """The questions of one round, and what has become of them."""

    version: int = 0
    """Of the policy when it began."""
    questions: list[Question] = field(default_factory=list)
    num_asked: int = 0
    played: dict[int, FinishedGroup] = field(default_factory=dict)
    """By index."""
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
        ...


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
        """Nothing begins before the first `take`. Another thread than the caller's uses engine, verifier,
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
        """Of what follows; only the thread changes a batch that has begun."""
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

    def take(self, position: int) -> Batch:
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
        """Ask only what the oldest batch in work still needs, until the next `take`."""
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
            except BaseException as error:  # raised by `take`
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
