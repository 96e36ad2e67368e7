"""Plays questions of a stream that need not end: a free slot of the engine takes the next one at once.

    questions ──▶ at most `slots` sequences, and a few that wait ──▶ engine: one call ──▶ over, in any order
        ▲                                                               │
        └───────────────── another may begin? ◀── a slot is free ◀──────┘

With a call for each batch, the slots of its short sequences stay empty until the longest has ended. Here the next
batch's are there already; what bounds them, such as the age of their tokens, is asked each time a slot is free.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator
from contextlib import closing

from msgspec import Struct

from swarm.groups.episodes import EpisodeRunner, FinishedGroup, Stream
from swarm.protocols import Verifier
from swarm.types import NextTurn, Question, Rejection, Sampling

LEAST_SHARE, MOST_SHARE = 8, 2
"""The engine's queue holds an eighth to a half as many sequences as there are slots: a slot is refilled within a step,
and questions come several at a time, because reading few prompts takes as long as reading many."""

BATCHES_A_CALL = 64
"""After so many batches a call of the engine ends with its last sequence: the next one allocates
again, and nothing that lives as long as a call grows without end."""


class Usage(Struct, frozen=True):
    """How much of the slots was used."""

    used_s: float = 0.0
    """Slot-seconds with a sequence."""
    open_s: float = 0.0
    """Slot-seconds while there was a call."""

    def since(self, before: Usage) -> float | None:
        """The share of the slots that was busy since then; None if there was no call."""
        open_s = self.open_s - before.open_s
        return (self.used_s - before.used_s) / open_s if open_s > 0 else None


class Flow:
    """The `Turns` of an engine's calls, all in one thread; an engine without turns cannot be used."""

    def __init__(
        self,
        stream: Stream,
        verifier: Verifier,
        more: Callable[[], tuple[int, Question] | None],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        slots: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`more` gives the next question with a distinct number, best its index in an endless stream: with `seed` it
        decides what is sampled. It gives None when none may begin now. Each question has G episodes, of which
        `slots` are sampled together.
        """
        self.num_episodes = slots
        """See `Turns`."""
        self._stream = stream
        self._more = more
        self._num_completions = num_completions
        self._sampling = sampling
        self._seed = seed
        self._least = slots + max(1, slots // LEAST_SHARE)
        self._most = slots + max(1, slots // MOST_SHARE)
        self._clock = clock
        self._runner = EpisodeRunner(verifier, num_completions)
        self._open: dict[int, NextTurn] = {}
        """What the engine was asked and has not answered, by episode."""
        self._used_s = self._open_s = 0.0
        self._counted_to: float | None = None
        """None between calls."""

    def play(self) -> Generator[tuple[int, FinishedGroup | Rejection]]:
        """Yield the number of a question and its episodes as soon as they are over, until none is left that may begin.

        If it is closed before, the next call resumes where this one was: turns that were not answered are asked again.
        Raises what engine and verifier raise.
        """
        try:
            with closing(self._stream((), 1, self._sampling, self._seed, self)) as answered:
                for name, answers in answered:
                    self._count()
                    self._open.pop(name, None)
                    self._runner.answer(name, answers)
                    yield from self._runner.over()
            yield from self._runner.over()
        finally:
            self._count()
            self._counted_to = None
            self._runner.ask_again(self._open.values())
            self._open.clear()

    def drop(self, numbers: Collection[int]) -> None:
        """Play these questions no longer. What an engine's call has begun of them occupies slots until it ends."""
        self._runner.drop(numbers)

    @property
    def usage(self) -> Usage:
        """Usage by all calls so far, as far as this thread has seen."""
        return Usage(self._used_s, self._open_s)

    @property
    def continuing(self) -> Collection[int]:
        """See `Turns`."""
        return self._runner.continuing

    def next_turns(self, wait: bool) -> list[NextTurn]:
        """Turns that are ready, and first turns of further questions for free slots. See `Turns`.

        No question begins while environments are so slow that two episodes a slot wait for theirs.
        """
        turns = self._runner.next_turns(wait=False)
        wanting = len(self._open) + len(turns) < self._least and self._runner.num_awaited < 2 * self.num_episodes
        most = self._most if wanting else 0
        while len(self._open) + len(turns) < most and (found := self._more()):
            number, question = found
            self._runner.add(number, question, number * self._num_completions)
            turns += self._runner.next_turns(wait=False)
        if wait and not turns:
            turns = self._runner.next_turns(wait=True)
        self._count()
        self._open |= {turn.episode: turn for turn in turns}
        return turns

    def _count(self) -> None:
        """What has passed since the last time."""
        now = self._clock()
        if self._counted_to is not None:
            passed_s = now - self._counted_to
            self._used_s += min(len(self._open), self.num_episodes) * passed_s
            self._open_s += self.num_episodes * passed_s
        self._counted_to = now
