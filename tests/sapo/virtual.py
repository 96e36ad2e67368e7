"""An engine and a trainer in virtual time, around the real `Rollouts`."""

from __future__ import annotations

import math
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence

from msgspec.structs import replace

from swarm.groups.building import Member
from swarm.protocols import Turns
from swarm.sapo.rollouts import RolloutPlan, Rollouts
from swarm.stopwatch import Stopwatch
from swarm.types import (
    Answers,
    Completion,
    Context,
    NextTurn,
    PolicyId,
    RolloutGroup,
    Sampling,
    TaskRef,
    VersionSpan,
)
from tests.example_groups import rollout_group
from tests.sapo.test_round import FakeVerifier

PATIENCE_S = 60.0


class Virtual:
    """Sequences of a batch are as long as the test says, and so are updates; a slot takes a token a second.

    All of it happens in the generating thread but the first `take_batch`.
    """

    def __init__(
        self,
        *,
        max_staleness: int,
        length: Callable[[random.Random], float],
        update_s: Callable[[random.Random], float],
        num_batches: int = 60,
        num_questions: int = 8,
        group_size: int = 8,
        slots: int | None = None,
        batches_a_call: int = 64,
        limit_s: float = math.inf,
        seed: int = 0,
    ) -> None:
        self.max_staleness = max_staleness
        self.length = length
        self.update_s = update_s
        self.num_batches = num_batches
        self.num_questions = num_questions
        self.group_size = group_size
        self.slots = slots or num_questions * group_size
        self.now = 0.0
        self.version = 0
        """Of the weights that sample, and of the trained ones."""
        self.lags: list[int] = []
        """By group trained on."""
        self.sizes: list[int] = []
        """Groups of each batch."""
        self.figures: list[float | None] = []
        """What each batch says of its slots."""
        self.begun_behind: Counter[int] = Counter()
        """Sequences by how far the sampler was behind their batch when they began."""
        self.used: list[tuple[float, float]] = []
        """(slot-seconds used, slot-seconds) so far, at the beginning of each update."""
        self._used_s = self._slots_s = 0.0
        self._random = random.Random(seed)
        self._lengths = seed
        self._begun: set[int] = set()
        self._updates_until: float | None = None
        self._first = threading.Event()
        self._over = threading.Event()
        plan = RolloutPlan(
            num_questions=num_questions,
            group_size=group_size,
            max_staleness=max_staleness,
            max_sequences=self.slots,
            batches_a_call=batches_a_call,
            limit_s=limit_s,
        )
        me = Member("me", PolicyId("virtual", "", 0), Sampling(), seed)
        verifier = FakeVerifier()
        self.rollouts = Rollouts(plan, me, self, verifier, self, self, lambda: self.now)  # type: ignore[arg-type]

    def run(self) -> Virtual:
        """All batches."""
        self._took(0)
        self._first.set()
        assert self._over.wait(PATIENCE_S)
        return self

    def busy(self, since: int = 0) -> float:
        """Share of the slots that was used from this update on."""
        (used, slots), (used_before, slots_before) = self.used[-1], self.used[since]
        return (used - used_before) / (slots - slots_before)

    def stream(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns,
    ) -> Generator[tuple[int, Answers]]:
        rows: dict[int, tuple[float, int]] = {}
        waiting: deque[NextTurn] = deque()
        while True:
            self._train()
            waiting += turns.next_turns(wait=not rows and not waiting)
            if not rows and not waiting and len(self._begun) < self.version + self.max_staleness + 1:
                return  # another call takes the next batch
            while waiting and len(rows) < self.slots:
                name = waiting.popleft().episode
                batch = name // (self.num_questions * self.group_size)
                self._begun.add(batch)
                self.begun_behind[batch - self.version] += 1
                rows[name] = self.now + self.length(random.Random(f"{self._lengths} {name}")), self.version
            ends = [end for end, _ in rows.values()] + [self._updates_until or math.inf]
            if min(ends) == math.inf:
                return
            passed_s, self.now = min(ends) - self.now, min(ends)
            self._used_s += len(rows) * passed_s
            self._slots_s += self.slots * passed_s
            for name, (end, version) in list(rows.items()):
                if end <= self.now:
                    del rows[name]
                    yield name, (Completion("good", "stop", (4,), (-1.0,), (VersionSpan(version, 1),)),)

    def _train(self) -> None:
        """What the trainer does at this time."""
        if self._updates_until is not None and self._updates_until <= self.now:
            self._updates_until = None
            self.version += 1
            self.rollouts.updated()
        if self._updates_until is not None or not self._is_complete() or self._over.is_set():
            return
        if self.version == 0:
            assert self._first.wait(PATIENCE_S)
        else:
            self._took(self.version)
        self.used.append((self._used_s, self._slots_s))
        self._updates_until = self.now + self.update_s(self._random)
        if self.version + 1 == self.num_batches:
            self.rollouts.close()
            self._over.set()

    def _is_complete(self) -> bool:
        """Whether the next batch to train on is generated; the first one was, once it is gone."""
        ahead = self.rollouts._ahead
        assert ahead is not None
        batch = ahead._batches.get(self.version * self.num_questions)
        return self.version == 0 if batch is None else batch.generated.done()

    def _took(self, batch: int) -> None:
        made = self.rollouts.take_batch(batch * self.num_questions, Stopwatch())
        self.sizes.append(len(made.groups))
        self.lags += [batch - graded.group.policy.version for graded in made.groups]
        self.figures.append(made.slots_busy)

    def make(
        self, question: TaskRef, completions: Sequence[Completion], rewards: Sequence[float], version: int
    ) -> RolloutGroup:
        oldest = min(span.version for completion in completions for span in completion.versions)
        group = rollout_group(question=question, completions=tuple(completions), rewards=tuple(rewards))
        return replace(group, policy=replace(group.policy, version=oldest))
