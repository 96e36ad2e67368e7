"""Which generated questions are held out: by stream and by content, so that no other seed leads to them.

Of all texts that a task can make, every tenth is for evaluation, by its digest; of questions with pictures, sounds or
clips every tenth content, since many have the same text. The request for the answer's form does not count: a suite that
asks for another form asks questions of the same tenth. Streams of either kind pass over questions of the other.
"""

from __future__ import annotations

from collections.abc import Callable

from swarm.environments.digests import draw, question_hash
from swarm.environments.sources.lru import LruCache
from swarm.errors import TaskError
from swarm.types import HELD_OUT_STREAMS, ProceduralRef, Prompt, Question, TaskRef

HELD_OUT_EVERY = 10
MAX_ATTEMPTS = 64
"""A stream that finds no question of its kind, because there are too few, asks what it has."""
FIRST_SUBSTITUTE = 2**40
"""Indices from here on are for substitutes; no run asks so many questions."""
NUM_FOUND = 4096
"""Questions of which a source remembers what they are made of: an evaluation asks the same ones every time, and its
stream passes over nine of ten."""


class HeldApart:
    """Streams whose questions are all of one kind."""

    def __init__(self, make: Callable[[int, int], Question], bare: Callable[[int, int], Prompt]) -> None:
        """`make` makes the question at an index of a stream, of either kind, and always the same; `bare` is what it
        asks, without the request for the answer's form."""
        self._make = make
        self._bare = bare
        self._found: LruCache[tuple[int, int], int] = LruCache(NUM_FOUND)

    def question(self, seed: int, index: int) -> Question:
        """The question at an index of a stream, or a substitute in the same stream for one of the other kind.

        Raises what `make` raises.
        """
        return self._make(seed, self._place(seed, index))

    def is_held_out(self, ref: TaskRef) -> bool:
        """Whether the stream or the content of a question that has been recalled is held out. See `TaskSource`."""
        if not isinstance(ref, ProceduralRef):
            return False
        if ref.seed >= HELD_OUT_STREAMS:
            return True
        for_evaluation = self._is_for_evaluation(ref.seed, ref.index, ref.media)
        return for_evaluation and not self._has_no_other(ref.seed, ref.index)

    def _is_for_evaluation(self, seed: int, index: int, media: str) -> bool:
        """Whether what a question asks and shows is for evaluation; `media` is as in its reference."""
        shown = (media,) if media else ()
        return draw(HELD_OUT_EVERY, "held out", question_hash(self._bare(seed, index)), *shown) == 0

    def _is_of_its_stream(self, seed: int, index: int) -> bool:
        media = self._make(seed, index).ref.media
        return self._is_for_evaluation(seed, index, media) == (seed >= HELD_OUT_STREAMS)

    def _has_no_other(self, seed: int, index: int) -> bool:
        """Whether a stream asks a question of the other kind, because it finds none of its own."""
        try:
            return index < FIRST_SUBSTITUTE and self._place(seed, index) == index
        except TaskError:
            return False

    def _place(self, seed: int, index: int) -> int:
        """The index that the question at an index of a stream is made of."""
        found = self._found.get((seed, index))
        if found is None:
            substitutes = FIRST_SUBSTITUTE + index * MAX_ATTEMPTS
            places = (index, *range(substitutes, substitutes + MAX_ATTEMPTS - 1))
            found = next((place for place in places if self._is_of_its_stream(seed, place)), index)
            self._found.put((seed, index), found)
        return found
