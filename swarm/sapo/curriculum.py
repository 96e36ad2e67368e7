"""A curriculum: of the questions of its stream a node asks those whose answers are likely to teach.

    stream ──▶ k questions for each one to ask ──▶ drawn by learnability ──▶ asked, answered, graded
                                                          ▲                             │
                                                          └── success by task and length ┘

A group teaches if its rewards differ. With success p, 4 p (1 - p) is the variance of a reward of 0 or 1, scaled to 1.
Its mean under the Beta posterior of p, given the rewards of questions of the same task and about the same length, is a
question's learnability. What is never solved keeps a small weight, so that it is tried now and then.
Source: arXiv:2408.15099, which selects questions by learnability.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from swarm.protocols import Verifier
from swarm.types import Question
from swarm.types.questions import as_text

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
        completions = self.completions + len(rewards)
        kept = min(1.0, WINDOW / completions)
        right = self.right + sum(min(max(reward, 0.0), 1.0) for reward in rewards)
        return Bucket(kept * right, kept * completions)


class Curriculum:
    """Draws a node's questions. `draw` may be called by another thread than `note`."""

    def __init__(self, verifier: Verifier, seed: int, draws: int) -> None:
        """`draws`: questions drawn for each one that is asked; 1: the stream as it is."""
        self._verifier = verifier
        self._seed = seed
        self._draws = draws
        self._buckets: dict[str, Bucket] = {}

    def draw(self, position: int, count: int) -> list[Question]:
        """`count` questions for `position` of those asked so far, in the order of the stream."""
        drawn = self._verifier.draw(self._seed, position * self._draws, count * self._draws)
        if self._draws == 1:
            return drawn
        weights = np.array([LEAST + self._bucket(question).learnability for question in drawn])
        rng = np.random.default_rng([self._seed, position])
        chosen = rng.choice(len(drawn), size=count, replace=False, p=weights / weights.sum())
        return [drawn[index] for index in sorted(chosen)]

    def note(self, question: Question, rewards: Sequence[float]) -> None:
        """An own group's rewards."""
        if self._draws > 1:
            self._buckets[_name(question)] = self._bucket(question).after(rewards)

    def dump(self) -> dict[str, Bucket]:
        """What a checkpoint keeps."""
        return dict(self._buckets)

    def restore(self, buckets: Mapping[str, Bucket]) -> None:
        """Go on with the success of an earlier run."""
        self._buckets = dict(buckets)

    def _bucket(self, question: Question) -> Bucket:
        return self._buckets.get(_name(question), Bucket())


def _name(question: Question) -> str:
    """Its task, and the power of two above its length in characters."""
    return f"{question.ref.task}/{len(as_text(question.prompt)).bit_length()}"
