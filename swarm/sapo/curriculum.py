"""A curriculum: of the questions of its stream a node asks those whose answers are likely to teach.

    stream ──▶ k questions for each one to ask ──▶ drawn by learnability ──▶ asked, answered, graded
                                                          ▲                             │
                      what members say of theirs ─────────┴── success by task and length ┘──▶ members

A group teaches if its rewards differ. With success p, 4 p (1 - p) is the variance of a reward of 0 or 1, scaled to 1.
Its mean under the Beta posterior of p, given the rewards of questions of the same task and about the same length, is a
question's learnability. While a node has few of these, what members say of theirs fills in. What is never solved
keeps a small weight, so that it is tried now and then.
Source: arXiv:2408.15099, which selects questions by learnability.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct

from swarm.protocols import Verifier
from swarm.types import Question
from swarm.types.questions import as_text
from swarm.types.runs import MAX_TRIES, Tries

MAX_CLAIM = 16.0
"""Completions that a member's claims about a bucket count as, at most."""
ENOUGH = 64.0
"""Own completions of a bucket from which on no claims count; before, claims fill in for those that are missing."""
MAX_CLAIMED = 64
"""Buckets of which claims are kept."""
WINDOW = 512.0
"""Completions of a bucket that count: the policy learns, so earlier ones are forgotten in proportion."""
PRIOR = 0.5
"""Right and wrong completions of a bucket before its first."""
LEAST = 0.05
"""Weight of a question without learnability."""


class Bucket(Struct, frozen=True):
    """Success at questions of one task and of about one length."""

    right: float = 0.0
    """Sum of the rewards, each cut to [0, 1]."""
    completions: float = 0.0

    @property
    def learnability(self) -> float:
        """Mean of 4 p (1 - p)."""
        right, wrong = PRIOR + self.right, PRIOR + self.completions - self.right
        total = right + wrong
        return 4 * right * wrong / (total * (total + 1))

    def after(self, rewards: Sequence[float]) -> Bucket:
        """With the completions of one more group."""
        return (self + Bucket(sum(min(max(reward, 0.0), 1.0) for reward in rewards), len(rewards))).cut(WINDOW)

    def cut(self, most: float) -> Bucket:
        """The same success at no more than `most` completions."""
        kept = min(1.0, most / self.completions) if self.completions else 1.0
        return Bucket(kept * self.right, kept * self.completions)

    def __add__(self, other: Bucket) -> Bucket:
        """The completions of both."""
        return Bucket(self.right + other.right, self.completions + other.completions)


class TaskSuccess:
    """Success by task, of own completions."""

    def __init__(self) -> None:
        """None yet."""
        self._tasks: dict[str, Bucket] = {}

    def note(self, tasks: Mapping[str, tuple[float, int]]) -> None:
        """A round's (sum of rewards, completions) by task."""
        for name, (total, num) in tasks.items():
            found = Bucket(min(max(total, 0.0), num), num)
            self._tasks[name] = (self._tasks.get(name, Bucket()) + found).cut(WINDOW)

    def learnability(self, most: int) -> dict[str, float]:
        """Learnability of this many tasks at most."""
        return {name: bucket.learnability for name, bucket in list(self._tasks.items())[:most]}


class Curriculum:
    """Draws a node's questions. `draw` may be called by another thread than `note`."""

    def __init__(self, verifier: Verifier, seed: int, draws: int) -> None:
        """`draws`: questions drawn for each one that is asked; 1: the stream as it is."""
        self._verifier = verifier
        self._seed = seed
        self._draws = draws
        self._buckets: dict[str, Bucket] = {}
        self._claimed: dict[str, Bucket] = {}

    def draw(self, position: int, count: int) -> list[Question]:
        """`count` questions for `position` of those asked so far, in the order of the stream."""
        drawn = self._verifier.draw(self._seed, position * self._draws, count * self._draws)
        if self._draws == 1:
            return drawn
        weights = np.array([self._weight(question) for question in drawn])
        rng = np.random.default_rng([self._seed, position])
        chosen = rng.choice(len(drawn), size=count, replace=False, p=weights / weights.sum())
        return [drawn[index] for index in sorted(chosen)]

    def note(self, question: Question, rewards: Sequence[float]) -> None:
        """An own group's rewards."""
        if self._draws > 1:
            self._buckets[_name(question)] = self._bucket(question).after(rewards)

    def hear(self, claims: Iterable[Tries]) -> None:
        """What the members say now of their tries; replaces what they said before."""
        if self._draws == 1:
            return
        sums: dict[str, Bucket] = {}
        for claim in claims:
            for name, (right, completions) in claim.items():
                each = Bucket(min(right, completions), completions).cut(MAX_CLAIM)
                sums[name] = sums.get(name, Bucket()) + each
        self._claimed = dict(sorted(sums.items(), key=lambda item: -item[1].completions)[:MAX_CLAIMED])

    def tries(self) -> Tries:
        """What this node says of its own: the kinds with the most completions."""
        most = sorted(self._buckets.items(), key=lambda item: -item[1].completions)[:MAX_TRIES]
        return {name: (round(bucket.right), round(bucket.completions)) for name, bucket in most}

    def dump(self) -> dict[str, Bucket]:
        """What a checkpoint keeps."""
        return dict(self._buckets)

    def restore(self, buckets: Mapping[str, Bucket]) -> None:
        """Go on with the success of an earlier run."""
        self._buckets = dict(buckets)

    def _bucket(self, question: Question) -> Bucket:
        return self._buckets.get(_name(question), Bucket())

    def _weight(self, question: Question) -> float:
        own, claimed = self._bucket(question), self._claimed.get(_name(question), Bucket())
        return LEAST + (own + claimed.cut(max(0.0, ENOUGH - own.completions))).learnability


def _name(question: Question) -> str:
    """Its task, and the power of two above its length in characters."""
    return f"{question.ref.task}/{len(as_text(question.prompt)).bit_length()}"
