"""Questions made from a seed and an index: with their reference, and again from it."""

from __future__ import annotations

from collections.abc import Callable

from swarm.environments.digests import question_hash
from swarm.errors import Refusal, TaskError
from swarm.reasons import Reason
from swarm.types import EpisodeRef, ProceduralRef, Prompt, Question


def referenced(task: str, library: str, options_digest: str, seed: int, index: int, prompt: Prompt) -> Question:
    """A generated question with its reference; `library` made it, with options of that digest."""
    return Question(ProceduralRef(task, library, options_digest, seed, index, question_hash(prompt)), prompt)


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
