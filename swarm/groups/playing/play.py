"""Plays the episodes of some questions, all asked at once."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from itertools import count

import numpy as np

from swarm.groups.episodes import Played, Stream
from swarm.groups.playing.table import Table
from swarm.protocols import Verifier
from swarm.types import Question, Rejection, Sampling


def play(
    stream: Stream,
    verifier: Verifier,
    questions: Sequence[Question],
    num_completions: int,
    sampling: Sampling,
    seed: int,
) -> Generator[tuple[int, Played | Rejection]]:
    """Play G episodes of each question; yields its index and its episodes, or why the engine did not finish them.

    An episode whose past leaves no room for a turn ends its whole group: nobody else could tell why it stops. Raises
    what engine and verifier raise.
    """
    single = [index for index, question in enumerate(questions) if question.max_turns == 1]
    prompts = [questions[index].prompt for index in single]
    table = Table(verifier, num_completions)
    several = [(index, question) for index, question in enumerate(questions) if question.max_turns > 1]
    for place, (index, question) in enumerate(several):
        table.add(index, question, len(prompts) + place * num_completions)
    turns = (table,) if several else ()
    with closing(stream(prompts, num_completions, sampling, seed, *turns)) as finished:
        for name, answers in finished:
            if name >= len(prompts):
                table.answer(name, answers)
                yield from table.over()
            elif isinstance(answers, Rejection):
                yield single[name], answers
            else:
                texts = [completion.text for completion in answers]
                yield single[name], Played(answers, verifier.begin(questions[single[name]].ref, texts))
    for number in count(1):
        left = table.all_that_follow()
        yield from table.over()
        if not left:
            return
        turn_seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        with closing(stream([turn.context for turn in left], 1, sampling, turn_seed)) as finished:
            for place, answers in finished:
                table.answer(left[place].episode, answers)
                yield from table.over()
