"""Which generated questions are held out: by stream and by content, so that no other seed leads to them.

Of all texts that a task can make, every tenth is for evaluation, by its digest; of questions with pictures, sounds or
clips every tenth content, since many have the same text. Streams of either kind pass over questions of the other.
"""

from __future__ import annotations

from collections.abc import Callable

from swarm.environments.digests import draw
from swarm.environments.sources.lru import LruCache
from swarm.types import HELD_OUT_STREAMS, ProceduralRef, Question, TaskRef

HELD_OUT_EVERY = 10
MAX_ATTEMPTS = 64
"""A stream that finds no question of its kind, because there are too few, asks what it has."""
FIRST_SUBSTITUTE = 2**40
"""Indices from here on are for substitutes; no run asks so many questions."""
NUM_FOUND = 4096
"""Questions of which a source remembers what they are made of: an evaluation asks the same ones every time, and its
stream passes over nine of ten."""


def is_held_out_content(ref: TaskRef) -> bool:
    """Whether what a question asks and shows is for evaluation."""
    shown = (ref.media,) if ref.media else ()
    return draw(HELD_OUT_EVERY, "held out", ref.question_hash, *shown) == 0


def is_held_out(ref: TaskRef) -> bool:
    """Whether a generated question's stream or content is held out. See `TaskSource`."""
    return isinstance(ref, ProceduralRef) and (ref.seed >= HELD_OUT_STREAMS or is_held_out_content(ref))


class HeldApart:
    """Streams whose questions are all of one kind."""

    def __init__(self, make: Callable[[int, int], Question]) -> None:
        """`make` makes the question at an index of a stream, of either kind, and always the same."""
        self._make = make
        self._found: LruCache[tuple[int, int], int] = LruCache(NUM_FOUND)

    def question(self, seed: int, index: int) -> Question:
        """The question at an index of a stream, or a substitute in the same stream for one of the other kind.

        Raises what `make` raises.
        """
        found = self._found.get((seed, index))
        if found is not None:
            return self._make(seed, found)
        question, found = self._search(seed, index)
        self._found.put((seed, index), found)
        return question

    def _search(self, seed: int, index: int) -> tuple[Question, int]:
        """A question of the stream's kind, and the index that it is made of."""
        substitutes = FIRST_SUBSTITUTE + index * MAX_ATTEMPTS
        for place in (index, *range(substitutes, substitutes + MAX_ATTEMPTS - 1)):
            question = self._make(seed, place)
            if is_held_out_content(question.ref) == (seed >= HELD_OUT_STREAMS):
                return question, place
        return self._make(seed, index), index
