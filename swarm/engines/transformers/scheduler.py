"""Assigns cache slots to sequences: pure bookkeeping, no model.

    waiting ──admit──▶ rows 0 .. B-1, a token per step ──finished──▶ gone
       ▲                          │
       └──────── preempt ─────────┘  when all rows, padded to the longest, exceed the token budget

Admission is optimistic: the length of a completion is unknown, and reserving the maximum would leave most of the memory
unused. When memory is short, the rows with the fewest sampled tokens are preempted and prefilled again later.

Next turns of episodes wait in a separate queue, those of the least advanced episodes first: then no episode is far
behind at the end, when it would leave slots empty.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import TYPE_CHECKING

from swarm.types import FinishReason, VersionSpan

if TYPE_CHECKING:
    from swarm.policy.experts import Routing

BLOCK = 64
"""Tokens per block; the cache grows by whole blocks."""
READ_SHARE = 16
"""Next turns wait until one can be read for so many running rows: reading few takes as long as reading many."""


@dataclass(frozen=True)
class Room:
    """Capacity of the cache."""

    rows: int
    tokens: int
    """Rows times the width of the longest, in whole blocks."""

    @property
    def longest(self) -> int:
        """Tokens that a sequence may reach, with a margin for growth by blocks."""
        return self.tokens - BLOCK


@dataclass(eq=False)
class SequenceState:
    """One completion in progress: mutable, and private to the engine."""

    question: int
    """Sequences of one question have the same prompt."""
    completion: int
    """Index among the completions of its question."""
    prompt: list[int]
    seed: int
    episode: int | None = None
    """Episode of a turn; None for a completion of a group."""
    turn: int = 1
    """Number of the turn."""
    ids: list[int] = field(default_factory=list)
    """Tokens so far, inserted ones included."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probabilities of the sampled tokens."""
    inserted: slice | None = None
    """The end of a thought that was inserted, in `ids`."""
    num_unread: int = 1
    """Newest tokens that the cache does not hold."""
    finish_reason: FinishReason | None = None
    routing: list[Routing] = field(default_factory=list)
    """Experts so far, in order of the tokens: those of the prefix at its last prefill, then one entry per step."""
    mixed: bool = False
    """Whether different weights computed its cache."""
    following: int | None = None
    """Position of the first token after the prompt; None where positions count tokens."""
    arrival: int = 0
    """Position in the order of arrival, set by the scheduler."""
    num_tokens: int = field(init=False)
    """Tokens of prompt and completion so far: the width of its row in the next step. A number, because the scheduler
    asks every row several times a step."""
    _versions: list[tuple[int, int]] = field(default_factory=list)
    """(policy version, index of its first token among the sampled ones)"""

    def __post_init__(self) -> None:
        """Count the tokens."""
        self.num_tokens = len(self.prompt) + len(self.ids)

    def since(self, start: int) -> list[int]:
        """The tokens from `start` on."""
        return self.ids[-1:] if self.ids and start == self.num_tokens - 1 else [*self.prompt, *self.ids][start:]

    @property
    def sampled(self) -> list[int]:
        """The tokens that the policy sampled."""
        return self.ids if self.inserted is None else self.ids[: self.inserted.start] + self.ids[self.inserted.stop :]

    @property
    def forced(self) -> int | None:
        """See `Completion`."""
        return None if self.inserted is None else self.inserted.start

    @property
    def read(self) -> list[int]:
        """The tokens before the newest, whose keys and values the cache holds."""
        return [*self.prompt, *self.ids][:-1]

    def extend(
        self,
        ids: Iterable[int],
        logprobs: Sequence[float],
        version: int,
        reason: Callable[[list[int]], FinishReason | None] = lambda ids: None,
        insert: Callable[[list[int]], list[int]] = lambda ids: [],
    ) -> None:
        """Add tokens that policy `version` sampled, up to the first at which all of them have a `reason` to end, or
        are followed by tokens that `insert` gives."""
        if not self._versions or self._versions[-1][0] != version:
            self._versions.append((version, len(self.logprobs)))
        self.num_unread = 1
        for token, logprob in zip(ids, logprobs, strict=False):
            self.ids.append(token)
            self.logprobs.append(logprob)
            if (found := reason(self.ids)) is not None:
                self.finish_reason = found
                break
            if inserted := insert(self.ids):
                self.inserted = slice(len(self.ids), len(self.ids) + len(inserted))
                self.ids += inserted
                self.num_unread += len(inserted)
                break
        self.num_tokens = len(self.prompt) + len(self.ids)

    def spans(self) -> tuple[VersionSpan, ...]:
        """The version spans of adjacent tokens."""
        ends = [*(start for _, start in self._versions[1:]), len(self.logprobs)]
        return tuple(
            VersionSpan(version, end - start) for (version, start), end in zip(self._versions, ends, strict=True)
        )


@dataclass(frozen=True)
class StepPlan:
    """Changes of the rows before the next step."""

    moves: list[tuple[int, int]]
    """(from, to) moves of rows' contents, simultaneous; no source is also a target."""
    admitted: list[SequenceState]
    """New rows, placed after the kept ones."""
    num_kept: int
    """Rows that stay, now rows 0 to num_kept - 1."""
    width: int
    """Tokens of the longest row in the next step."""
    num_open: int
    """Unfinished sequences, an upper bound on the number of rows."""


class Scheduler:
    """Fills slots in order of arrival, up to the capacity."""

    def __init__(self, sequences: Iterable[SequenceState], room: Room) -> None:
        """Each of `sequences` must fit alone at its maximum length."""
        self.rows: list[SequenceState] = []
        self._waiting: deque[SequenceState] = deque()
        self._turns: list[SequenceState] = []
        """Second and later turns, least advanced episodes first."""
        self._room = room
        self._arrivals = count()
        self.add(sequences)

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return not self._waiting and not self._turns and not any(row.finish_reason is None for row in self.rows)

    def add(self, sequences: Iterable[SequenceState]) -> None:
        """Append sequences to the queues; each must fit alone at its maximum length."""
        for sequence in sequences:
            sequence.arrival = next(self._arrivals)
            if sequence.turn == 1:
                self._waiting.append(sequence)
            else:
                insort(self._turns, sequence, key=lambda each: each.turn)

    def upcoming(self) -> Iterable[SequenceState]:
        """The next sequences to be admitted, in order."""
        return chain(self._waiting, self._turns)

    def plan(self) -> StepPlan:
        """Remove finished rows, preempt those that no longer fit, and admit new ones."""
        staying = [i for i, row in enumerate(self.rows) if row.finish_reason is None]
        staying = self._within_budget(staying)
        moves = self._compact(staying)
        admitted = self._admit()
        num_kept = len(self.rows) - len(admitted)
        return StepPlan(
            moves, admitted, num_kept, self._width(), len(self._waiting) + len(self._turns) + len(self.rows)
        )

    def requeue(self) -> None:
        """Preempt every row: the content of the cache is invalid."""
        self._send_back([row for row in self.rows if row.finish_reason is None])
        self.rows = []

    def halve(self) -> bool:
        """Requeue and halve the maximum number of rows; False when it was one already."""
        num_rows = len(self.rows)
        self._room = replace(self._room, rows=max(1, num_rows // 2))
        self.requeue()
        return num_rows > 1

    def _within_budget(self, staying: list[int]) -> list[int]:
        if not staying:
            return staying
        widest = max(self.rows[i].num_tokens for i in staying)
        num_kept = max(1, self._room.tokens // blocks(widest))
        if len(staying) <= num_kept:
            return staying
        by_progress = sorted(staying, key=lambda i: len(self.rows[i].ids), reverse=True)
        self._send_back([self.rows[i] for i in by_progress[num_kept:]])
        return sorted(by_progress[:num_kept])

    def _send_back(self, rows: list[SequenceState]) -> None:
        """Move sequences to the front of the queue, in order of arrival."""
        self._waiting.extendleft(sorted(rows, key=lambda row: row.arrival, reverse=True))

    def _compact(self, staying: list[int]) -> list[tuple[int, int]]:
        """Fill gaps with rows from the end."""
        kept = set(staying)
        holes = [i for i in range(len(staying)) if i not in kept]
        sources = [i for i in staying if i >= len(staying)]
        moves = list(zip(sources, holes, strict=True))
        for source, target in moves:
            self.rows[target] = self.rows[source]
        del self.rows[len(staying) :]
        return moves

    def _admit(self) -> list[SequenceState]:
        before, width = len(self.rows), self._width()
        while self._waiting and self._has_room(self._waiting[0], width):
            width = max(width, self._waiting[0].num_tokens)
            self.rows.append(self._waiting.popleft())
        num_free = self._room.rows - len(self.rows)
        if not self._waiting and min(num_free, len(self._turns)) * READ_SHARE >= len(self.rows):
            while self._turns and self._has_room(self._turns[0], width):
                width = max(width, self._turns[0].num_tokens)
                self.rows.append(self._turns.pop(0))
        return self.rows[before:]

    def _has_room(self, sequence: SequenceState, width: int) -> bool:
        """Whether another row fits; `width` is that of the longest present row."""
        if not self.rows:
            return True  # each fits alone
        if len(self.rows) == self._room.rows:
            return False
        # Keep half a block free, so that the new row is not preempted at the next step.
        return (len(self.rows) + 1) * blocks(max(width, sequence.num_tokens) + BLOCK // 2) <= self._room.tokens

    def _width(self) -> int:
        return max((row.num_tokens for row in self.rows), default=0)


def blocks(num_tokens: int) -> int:
    """Round up to whole blocks."""
    return -(-num_tokens // BLOCK) * BLOCK
