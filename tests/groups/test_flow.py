"""Questions that flow into free slots: the episodes are those of questions played at once, and none is lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from itertools import islice
from typing import ClassVar

import pytest

from swarm.environments.verification.inline import InlineVerifier
from swarm.groups.episodes import FinishedGroup, run_episodes
from swarm.groups.flow import Flow
from swarm.reasons import Reason
from swarm.types import Actions, Grade, Question, Rejection, Sampling, TaskRef
from tests.groups.test_episodes import GAME, SEED, Halving

QUESTIONS = 9
GROUP_SIZE = 3


@pytest.fixture
def verifier() -> InlineVerifier:
    return InlineVerifier([GAME])


def _flow(
    engine: Halving,
    verifier: InlineVerifier,
    slots: int = 4,
    until: Callable[[], int] = lambda: QUESTIONS,
    clock: Callable[[], float] = lambda: 0.0,
) -> tuple[Flow, list[int]]:
    """A flow of questions up to `until`, and the numbers of those that it has asked for."""
    questions = verifier.draw(SEED, 0, QUESTIONS)
    asked: list[int] = []

    def more() -> tuple[int, Question] | None:
        if len(asked) >= until():
            return None
        asked.append(len(asked))
        return asked[-1], questions[asked[-1]]

    return Flow(engine.stream, verifier, more, GROUP_SIZE, Sampling(), 0, slots, clock), asked


def _results(played: list[tuple[int, FinishedGroup | Rejection]]) -> dict[int, object]:
    return {
        number: each if isinstance(each, Rejection) else (each.completions, each.grading.result())
        for number, each in played
    }


def _at_once(verifier: InlineVerifier) -> dict[int, object]:
    questions = verifier.draw(SEED, 0, QUESTIONS)
    return _results([*run_episodes(Halving().stream, verifier, questions, GROUP_SIZE, Sampling(), 0)])


def test_episodes_are_those_of_questions_asked_at_once_and_no_more_are_begun_than_slots_and_a_few(
    verifier: InlineVerifier,
) -> None:
    engine = Halving()
    flow, asked = _flow(engine, verifier)
    results = _results([*flow.play()])
    assert results == _at_once(verifier) and asked == [*range(QUESTIONS)]
    assert len(engine.taken[0]) == 2 * GROUP_SIZE, "whole questions, up to six sequences"
    assert max(map(len, engine.taken)) < 2 * GROUP_SIZE + GROUP_SIZE
    assert flow.num_episodes == 4 and not flow.continuing


def test_a_call_that_was_closed_is_gone_on_with_and_nothing_is_lost_or_played_twice(verifier: InlineVerifier) -> None:
    flow, asked = _flow(Halving(), verifier)
    played: list[tuple[int, FinishedGroup | Rejection]] = []
    for _ in range(100):
        played += islice(games := flow.play(), 1)
        games.close()
    assert sorted(number for number, _ in played) == [*range(QUESTIONS)] == asked
    assert _results(played) == _at_once(verifier)


def test_what_is_dropped_is_not_told_of_and_the_others_go_on(verifier: InlineVerifier) -> None:
    flow, _ = _flow(Halving(), verifier)
    first, _ = next(games := flow.play())
    games.close()
    dropped = {0, 1} - {first}
    flow.drop(dropped)
    assert {first, *dict(flow.play())} == {*range(QUESTIONS)} - dropped


def test_a_refused_turn_ends_its_question_alone(verifier: InlineVerifier) -> None:
    flow, _ = _flow(Halving(no_room=3), verifier)
    results = dict(flow.play())
    refused = {number for number, each in results.items() if isinstance(each, Rejection)}
    assert refused == {0} and len(results) == QUESTIONS
    assert isinstance(results[0], Rejection) and results[0].reason == Reason.PROMPT_TOO_LONG


def test_a_question_that_may_begin_only_later_enters_the_call_that_is_open(verifier: InlineVerifier) -> None:
    allowed = [2]
    engine = Halving()
    flow, asked = _flow(engine, verifier, slots=64, until=lambda: allowed[0])
    games = flow.play()
    next(games)
    assert asked == [0, 1]
    allowed[0] = 5
    rest = dict(games)
    assert asked == [0, 1, 2, 3, 4] and len(rest) == 4
    assert dict(flow.play()) == {}, "none is left that may begin"
    allowed[0] = 6
    assert set(dict(flow.play())) == {5}


def test_environments_that_are_slow_are_not_given_ever_more_episodes(verifier: InlineVerifier) -> None:
    class Slow(InlineVerifier):
        held: ClassVar[list[tuple[Future[Grade | Rejection], TaskRef, Actions]]] = []

        def replay(self, ref: TaskRef, actions: Actions) -> Future[Grade | Rejection]:
            answer: Future[Grade | Rejection] = Future()
            self.held.append((answer, ref, actions))
            return answer

    slow = Slow([GAME])
    flow, asked = _flow(Halving(), slow, slots=4)
    turns = flow.next_turns(wait=False)
    while turns:
        for turn in turns:
            flow._open.pop(turn.episode)
            flow._runner.answer(turn.episode, Halving().answers(turn.context, turn.episode, turn.number))
        turns = flow.next_turns(wait=False)
    assert 8 <= len(slow.held) <= 12 and len(asked) <= 5, "two of each slot, and the rest of a question"


def test_slots_are_counted_while_there_is_a_call(verifier: InlineVerifier) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1
        return now[0]

    flow, _ = _flow(Halving(), verifier, slots=64, clock=clock)
    before = flow.usage
    assert before.since(before) is None
    list(flow.play())
    busy, used = flow.usage.since(before), flow.usage
    assert busy is not None and 0 < busy < QUESTIONS * GROUP_SIZE / 64
    now[0] += 1_000
    assert flow.usage == used, "nothing is counted between calls"
