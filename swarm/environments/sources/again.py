"""Makes the question behind a reference again, for every source that makes questions from a seed and an index."""

from __future__ import annotations

from collections.abc import Callable

from swarm.errors import Refusal, TaskError
from swarm.reasons import Reason
from swarm.types import EpisodeRef, ProceduralRef, Question


def made_again(make: Callable[[int, int], Question], ref: ProceduralRef | EpisodeRef, difference: str) -> Question:
    """What `make` makes of the reference's seed and index.

    Raises `Refusal`, `question_mismatch`: `make` raised `TaskError`, or its text is another one; `difference` says so.
    """
    try:
        question = make(ref.seed, ref.index)
    except TaskError as error:
        raise Refusal(Reason.QUESTION_MISMATCH, str(error)) from error
    if question.ref.question_hash != ref.question_hash:
        raise Refusal(Reason.QUESTION_MISMATCH, difference)
    return question
