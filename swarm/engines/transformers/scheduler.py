"""Which sequences hold a slot of the cache: pure bookkeeping, no model.

    waiting ──admit──▶ rows 0 .. B-1, one token a step ──finished──▶ gone
       ▲                          │
       └──────── preempt ─────────┘  when all rows, as wide as the longest, would take too many tokens

Admission is optimistic: nobody knows how long a completion will be, and reserving the longest possible would leave most
of the memory unused. When it gets tight the rows with the fewest tokens of their own go back, and are read again later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from swarm.types import FinishReason, VersionSpan

if TYPE_CHECKING:
    from swarm.policy.routing import Routing

BLOCK = 64
"""Widths are counted in blocks of this many tokens: the cache grows a block at a time."""


@dataclass(frozen=True)
class Room:
    """What may be held at once."""

    rows: int
    tokens: int
    """Rows times the width of the widest, in blocks."""

    def fits(self, num_tokens: int) -> bool:
        """Whether a sequence may reach this length, with some to spare for a cache that grows by blocks."""
        return num_tokens + BLOCK <= self.tokens


@dataclass(eq=False)
class Draft:
    """One completion in the making: it changes with every token, and no other part sees it."""

    question: int
    """Index of its prompt."""
    completion: int
    """Index in its group."""
    prompt: list[int]
    seed: int
    ids: list[int] = field(default_factory=list)
    """Tokens sampled so far."""
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    routing: list[Routing] = field(default_factory=list)
    """The experts met so far: by its past when it was last read, then token by token."""
    _versions: list[tuple[int, int]] = field(default_factory=list)
    """(policy version, index of its first token)"""

    @property
    def num_tokens(self) -> int:
        """Prompt and completion so far: the width its row has in the next step."""
        return len(self.prompt) + len(self.ids)

    @property
    def last(self) -> int:
        """The newest token, which the next step feeds to the model."""
        return self.ids[-1] if self.ids else self.prompt[-1]

    @property
    def read(self) -> list[int]:
        """The tokens before it, whose keys and values the cache holds."""
        return [*self.prompt, *self.ids][:-1]

    def append(self, token: int, logprob: float, version: int) -> None:
        """A token that policy `version` sampled."""
        if not self._versions or self._versions[-1][0] != version:
            self._versions.append((version, len(self.ids)))
        self.ids.append(token)
        self.logprobs.append(logprob)

    def spans(self) -> tuple[VersionSpan, ...]:
        """Versions by adjacent tokens."""
        ends = [*(start for _, start in self._versions[1:]), len(self.ids)]
        return tuple(
            VersionSpan(version, end - start) for (version, start), end in zip(self._versions, ends, strict=True)
        )


@dataclass(frozen=True)
class Plan:
    """How the rows change before the next step."""

    moves: list[tuple[int, int]]
    """(from, to): the row's contents move, all at once; no source is also a target."""
    admitted: list[Draft]
    """They follow the rows that stay."""
    num_kept: int
    """Rows that stay, now rows 0 to num_kept - 1."""
    width: int
    """Tokens of the longest row in the next step."""
    num_open: int
    """Sequences that are not finished: there will never be more rows."""


class Scheduler:
    """Fills slots in order of arrival, as many as there is room for."""

    def __init__(self, drafts: Iterable[Draft], room: Room) -> None:
        """Each of `drafts` must fit by itself at its longest."""
        self.rows: list[Draft] = []
        self._waiting = deque(drafts)
        self._room = room

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return not self._waiting and not any(row.finish_reason is None for row in self.rows)

    def upcoming(self) -> Iterable[Draft]:
        """Who is next to be admitted, in order."""
        return iter(self._waiting)

    def plan(self) -> Plan:
        """Drop what is finished, preempt what no longer fits, admit what does."""
        staying = [i for i, row in enumerate(self.rows) if row.finish_reason is None]
        staying = self._within_budget(staying)
        moves = self._compact(staying)
        admitted = self._admit()
        num_kept = len(self.rows) - len(admitted)
        return Plan(moves, admitted, num_kept, self._width(), len(self._waiting) + len(self.rows))

    def requeue(self) -> None:
        """Take every row back to wait: what the cache holds of them is void."""
        self._send_back([row for row in self.rows if row.finish_reason is None])
        self.rows = []

    def halve(self) -> bool:
        """Requeue, and have half as many rows from now on; False when one was too much already."""
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

    def _send_back(self, rows: list[Draft]) -> None:
        """To the front of the queue, in the order in which they came."""
        self._waiting.extendleft(sorted(rows, key=lambda row: (row.question, row.completion), reverse=True))

    def _compact(self, staying: list[int]) -> list[tuple[int, int]]:
        """Close the gaps with rows from the end."""
        kept = set(staying)
        holes = [i for i in range(len(staying)) if i not in kept]
        sources = [i for i in staying if i >= len(staying)]
        moves = list(zip(sources, holes, strict=True))
        for source, target in moves:
            self.rows[target] = self.rows[source]
        del self.rows[len(staying) :]
        return moves

    def _admit(self) -> list[Draft]:
        admitted: list[Draft] = []
        width = self._width()
        while self._waiting and len(self.rows) < self._room.rows:
            width = max(width, self._waiting[0].num_tokens)
            # Half a block of room, or the newcomer might have to leave again at the next step.
            if self.rows and (len(self.rows) + 1) * blocks(width + BLOCK // 2) > self._room.tokens:
                break
            admitted.append(self._waiting.popleft())
            self.rows.append(admitted[-1])
        return admitted

    def _width(self) -> int:
        return max((row.num_tokens for row in self.rows), default=0)


def blocks(num_tokens: int) -> int:
    """Rounded up to whole blocks."""
    return -(-num_tokens // BLOCK) * BLOCK
