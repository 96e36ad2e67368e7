"""Which generated questions are held out: by stream and by text, so that no other seed leads to them.

Of all texts that a task can make, every tenth is for evaluation, by its digest. Streams of either kind pass over texts
of the other.
"""

from __future__ import annotations

from collections.abc import Callable

from swarm.environments.digests import draw
from swarm.types import HELD_OUT_STREAMS, ProceduralRef, Question, TaskRef

HELD_OUT_EVERY = 10
MAX_ATTEMPTS = 64
"""A stream that finds no text of its kind, because there are too few, asks what it has."""
FIRST_SUBSTITUTE = 2**40
"""Indices from here on are for substitutes; no run asks so many questions."""


def is_held_out_text(question_hash: str) -> bool:
    """Whether a text is for evaluation."""
    return draw(HELD_OUT_EVERY, "held out", question_hash) == 0


def is_held_out(ref: TaskRef) -> bool:
    """Whether a generated question's stream or text is held out. See `TaskSource`."""
    return isinstance(ref, ProceduralRef) and (ref.seed >= HELD_OUT_STREAMS or is_held_out_text(ref.question_hash))


def held_apart(make: Callable[[int, int], Question], seed: int, index: int) -> Question:
    """What `make` makes at an index of a stream, or a substitute in the same stream for a text of the other kind.

    Raises what `make` raises.
    """
    first = question = make(seed, index)
    for attempt in range(MAX_ATTEMPTS):
        if is_held_out_text(question.ref.question_hash) == (seed >= HELD_OUT_STREAMS):
            return question
        question = make(seed, FIRST_SUBSTITUTE + index * MAX_ATTEMPTS + attempt)
    return first
