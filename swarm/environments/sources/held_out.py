"""Which generated questions are held out: by stream and by content, so that no other seed leads to them.

Of all texts that a task can make, every tenth is for evaluation, by its digest; of questions with pictures, sounds or
clips every tenth content, since many have the same text. Streams of either kind pass over questions of the other.
"""

from __future__ import annotations

from collections.abc import Callable

from swarm.environments.digests import draw
from swarm.types import HELD_OUT_STREAMS, ProceduralRef, Question, TaskRef

HELD_OUT_EVERY = 10
MAX_ATTEMPTS = 64
"""A stream that finds no question of its kind, because there are too few, asks what it has."""
FIRST_SUBSTITUTE = 2**40
"""Indices from here on are for substitutes; no run asks so many questions."""


def is_held_out_content(ref: TaskRef) -> bool:
    """Whether what a question asks and shows is for evaluation."""
    shown = (ref.media,) if ref.media else ()
    return draw(HELD_OUT_EVERY, "held out", ref.question_hash, *shown) == 0


def is_held_out(ref: TaskRef) -> bool:
    """Whether a generated question's stream or content is held out. See `TaskSource`."""
    return isinstance(ref, ProceduralRef) and (ref.seed >= HELD_OUT_STREAMS or is_held_out_content(ref))


def held_apart(make: Callable[[int, int], Question], seed: int, index: int) -> Question:
    """What `make` makes at an index of a stream, or a substitute in the same stream for one of the other kind.

    Raises what `make` raises.
    """
    first = question = make(seed, index)
    for attempt in range(MAX_ATTEMPTS):
        if is_held_out_content(question.ref) == (seed >= HELD_OUT_STREAMS):
            return question
        question = make(seed, FIRST_SUBSTITUTE + index * MAX_ATTEMPTS + attempt)
    return first
