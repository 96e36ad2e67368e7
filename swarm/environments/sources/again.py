"""Questions made from a seed and an index: with their reference, and again from it."""

from __future__ import annotations

from collections.abc import Callable

from swarm.environments.digests import check_question, question_hash
from swarm.errors import Refusal, TaskError
from swarm.reasons import Reason
from swarm.types import EpisodeRef, ProceduralRef, Prompt, Question, media_of
from swarm.types.media import media_digest


def referenced(task: str, library: str, options_digest: str, seed: int, index: int, prompt: Prompt) -> Question:
    """A generated question with its reference; `library` made it, with options of that digest."""
    media = media_digest(media_of(prompt))
    return Question(ProceduralRef(task, library, options_digest, seed, index, question_hash(prompt), media), prompt)


def made_again(make: Callable[[int, int], Question], ref: ProceduralRef | EpisodeRef, difference: str) -> Question:
    """What `make` makes of the reference's seed and index.

    Raises `Refusal`: `question_mismatch` if `make` raised `TaskError`, or its text is another one, as `difference`
    says; `media_mismatch`.
    """
    try:
        question = make(ref.seed, ref.index)
    except TaskError as error:
        raise Refusal(Reason.QUESTION_MISMATCH, str(error)) from error
    check_question(ref, question.ref, difference)
    return question
