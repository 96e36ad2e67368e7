"""Episodes played turn by turn, and what a receiver accepts of them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import Future

import pytest
from msgspec.structs import replace

from swarm.environments.episodes.number_guessing import NumberGuessingTask
from swarm.environments.verification.inline import InlineVerifier
from swarm.groups.episodes import FinishedGroup, digest, is_whole, joined, run_episodes
from swarm.protocols import Turns
from swarm.reasons import Reason
from swarm.types import (
    Actions,
    Answers,
    Completion,
    Context,
    Grade,
    NextTurn,
    Past,
    Question,
    Rejection,
    RolloutGroup,
    Sampling,
    TaskRef,
    Text,
    Turn,
    VersionSpan,
)
from tests.environments.test_episodes import hidden
from tests.example_groups import rollout_group

GAME = NumberGuessingTask()
HIGHER, LOWER = (Text("higher"),), (Text("lower"),)
SEED = 5


class Halving:
    """Guesses by halving; at first episode k of 3 guesses k + 1. A token id is a guess, version and log-probability say
    which turn it is.

    It can be told of turns while it answers others.
    """

    def __init__(self, no_room: int | None = None) -> None:
        """`no_room`: the turn for which the first episode has none."""
        self.taken: list[list[NextTurn]] = []
        self._no_room = no_room

    def stream(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns | None = None,
    ) -> Generator[tuple[int, Answers]]:
        assert not prompts and turns is not None
        while taken := turns.next_turns(wait=True):
            self.taken.append(list(taken))
            for turn in reversed(taken):
                yield turn.episode, self.answers(turn.context, turn.episode, turn.number)

    def answers(self, context: Context, episode: int, number: int) -> Answers:
        if self._no_room == number and episode == 0:
            return Rejection(Reason.PROMPT_TOO_LONG)
        return (self._said(1 + episode % 3 if isinstance(context, str) else self._next(context), number),)

    def _next(self, past: Past) -> int:
        low, high = 0, GAME.highest + 1
        for step in past.steps:
            (guess, _) = step.token_ids
            low, high = (guess, high) if step.observation == HIGHER else (low, guess)
        return (low + high) // 2

    def _said(self, guess: int, number: int) -> Completion:
        return Completion(str(guess), "stop", (guess, 0), (-1.0 * number, -0.5), (VersionSpan(number // 3, 2),))


class InRounds(Halving):
    """It cannot: all episodes that go on take their turn in one call."""

    def __init__(self, no_room: int | None = None) -> None:
        super().__init__(no_room)
        self.calls: list[tuple[list[Context], int, int]] = []

    def stream(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns | None = None,
    ) -> Generator[tuple[int, Answers]]:
        if turns is None:
            self.calls.append((list(prompts), num_completions, seed))
            for index, context in reversed(list(enumerate(prompts))):
                yield index, self.answers(context, index, len(self.calls))


def questions_hiding(*numbers: int) -> list[Question]:
    drawn = InlineVerifier([GAME]).draw(SEED, 0, 100)
    return [next(q for q in drawn if hidden(GAME, SEED, q.ref.index) == number) for number in numbers]


def played(
    engine: Halving, questions: Sequence[Question], num_completions: int = 3
) -> dict[int, FinishedGroup | Rejection]:
    return dict(run_episodes(engine.stream, InlineVerifier([GAME]), questions, num_completions, Sampling(), 9))


@pytest.mark.parametrize("engine", [Halving(), InRounds()], ids=["continuous", "in rounds"])
def test_turns_follow_their_past_until_all_episodes_are_over(engine: Halving) -> None:
    games = played(engine, questions_hiding(2, 5))
    first, second = games[0], games[1]
    assert isinstance(first, FinishedGroup) and isinstance(second, FinishedGroup)
    assert [c.actions for c in first.completions] == [("1", "4", "2"), "2", ("3", "1", "2")]
    assert [c.actions for c in second.completions] == [("1", "4", "6"), ("2", "5"), ("3", "5")]
    grade = second.grading.result()
    assert isinstance(grade, Grade)
    assert grade.rewards == (0.0, 1.0, 1.0), "three guesses were not enough"
    assert grade.observations == ((HIGHER, HIGHER), (HIGHER,), (HIGHER,))


def test_engines_that_cannot_be_told_of_turns_are_asked_in_rounds() -> None:
    engine = InRounds()
    played(engine, questions_hiding(2, 5))
    assert [(len(prompts), num_completions) for prompts, num_completions, _ in engine.calls] == [(6, 1), (5, 1), (3, 1)]
    assert len({seed for _, _, seed in engine.calls}) == 3
    past = engine.calls[2][0][0]
    assert isinstance(past, Past)
    assert [(step.token_ids, step.observation) for step in past.steps] == [((1, 0), HIGHER), ((4, 0), LOWER)]


def test_each_episode_goes_on_when_its_own_environment_has_answered() -> None:
    class Slow(InlineVerifier):
        """Answers the first episode's first turn when it is asked about the last turn of another one."""

        waiting: tuple[Future[Grade | Rejection], Grade | Rejection] | None = None

        def begin_grading(self, ref: TaskRef, texts: Sequence[Actions]) -> Future[Grade | Rejection]:
            verdict = super().begin_grading(ref, texts)
            if texts == ["1"]:
                answer: Future[Grade | Rejection] = Future()
                self.waiting = answer, verdict.result()
                return answer
            if texts == [("3", "1")] and self.waiting is not None:
                self.waiting[0].set_result(self.waiting[1])
            return verdict

    engine = Halving()
    games = dict(run_episodes(engine.stream, Slow([GAME]), questions_hiding(2), 3, Sampling(), 9))
    game = games[0]
    assert isinstance(game, FinishedGroup)
    assert [c.actions for c in game.completions] == [("1", "4", "2"), "2", ("3", "1", "2")]
    assert [[(turn.episode, turn.number) for turn in taken] for taken in engine.taken] == [
        [(0, 1), (1, 1), (2, 1)],
        [(2, 2)],
        [(0, 2), (2, 3)],
        [(0, 3)],
    ]


def test_a_refusal_of_one_replay_is_that_of_its_group() -> None:
    class Crashing(InlineVerifier):
        def begin_grading(self, ref: TaskRef, texts: Sequence[Actions]) -> Future[Grade | Rejection]:
            verdict: Future[Grade | Rejection] = Future()
            if texts != [("1", "4")]:
                return super().begin_grading(ref, texts)
            verdict.set_result(Rejection(Reason.VERIFIER_CRASH))
            return verdict

    games = dict(run_episodes(Halving().stream, Crashing([GAME]), questions_hiding(2, 5), 3, Sampling(), 9))
    for game in games.values():
        assert isinstance(game, FinishedGroup)
        assert game.grading.result() == Rejection(Reason.VERIFIER_CRASH)
        assert all(completion.actions for completion in game.completions)


def test_an_episode_is_one_completion_of_the_policys_turns_alone() -> None:
    (game,) = played(Halving(), questions_hiding(2)).values()
    assert isinstance(game, FinishedGroup)
    whole = game.completions[0]
    assert whole == Completion(
        text="142",
        finish_reason="stop",
        token_ids=(1, 0, 4, 0, 2, 0),
        logprobs=(-1.0, -0.5, -2.0, -0.5, -3.0, -0.5),
        versions=(VersionSpan(0, 4), VersionSpan(1, 2)),
        turns=(Turn(1, 2, "stop"),) * 3,
        observed=digest((HIGHER, LOWER)),
    )
    assert [(turn.text, turn.token_ids) for turn in whole.by_turn()] == [("1", (1, 0)), ("4", (4, 0)), ("2", (2, 0))]
    assert not game.completions[1].turns and not game.completions[1].observed, "a single turn is a plain completion"


def test_an_episode_without_room_for_a_turn_ends_its_group_and_no_other() -> None:
    games = played(Halving(no_room=2), questions_hiding(2, 5))
    assert games[0] == Rejection(Reason.PROMPT_TOO_LONG)
    assert isinstance(games[1], FinishedGroup)
    assert played(Halving(no_room=1), questions_hiding(2))[0] == Rejection(Reason.PROMPT_TOO_LONG)


def test_an_environment_that_answers_differently_each_time_is_found_out() -> None:
    class Fickle(InlineVerifier):
        times = 0

        def begin_grading(self, ref: TaskRef, texts: Sequence[Actions]) -> Future[Grade | Rejection]:
            self.times += 1
            grade = super().begin_grading(ref, texts).result()
            assert isinstance(grade, Grade)
            changed = tuple(tuple((Text(str(self.times)),) for _ in episode) for episode in grade.observations)
            verdict: Future[Grade | Rejection] = Future()
            verdict.set_result(replace(grade, observations=changed))
            return verdict

    (game,) = dict(run_episodes(Halving().stream, Fickle([GAME]), questions_hiding(2), 3, Sampling(), 9)).values()
    assert isinstance(game, FinishedGroup)
    verdict = game.grading.result()
    assert isinstance(verdict, Rejection) and verdict.reason == "episode_mismatch"


@pytest.fixture
def group() -> RolloutGroup:
    """Two episodes of three turns, one of one turn."""
    (question,) = questions_hiding(2)
    (game,) = played(Halving(), [question]).values()
    assert isinstance(game, FinishedGroup)
    return rollout_group(question=question.ref, completions=game.completions, rewards=(0.0, 0.0, 0.0))


def accepted(group: RolloutGroup) -> bool:
    actions = [completion.actions for completion in group.completions]
    (verdict,) = InlineVerifier([GAME]).grade([(group.question, actions)])
    return isinstance(verdict, Grade) and is_whole(group, verdict)


def with_turns(completion: Completion, order: Sequence[int]) -> Completion:
    """Some of its turns, and nothing else changed."""
    turns = completion.by_turn()
    return replace(joined([turns[k] for k in order], ()), observed=completion.observed)


def test_only_what_was_played_is_accepted(group: RolloutGroup) -> None:
    assert accepted(group)
    first = group.completions[0]
    orders = {"fewer": (0, 1), "more": (0, 1, 2, 2), "another order": (1, 0, 2), "only the last": (2,)}
    for what, order in orders.items():
        assert not accepted(replace(group, completions=(with_turns(first, order), *group.completions[1:]))), what
    for observed in ("", digest((HIGHER, HIGHER))):
        assert not accepted(replace(group, completions=(replace(first, observed=observed), *group.completions[1:])))
    other = questions_hiding(6)[0].ref
    assert not accepted(replace(group, question=other)), "the same words in another episode"


def test_a_single_turn_that_claims_to_have_seen_more_is_refused(group: RolloutGroup) -> None:
    short = replace(group.completions[1], observed=digest((LOWER,)))
    assert not accepted(replace(group, completions=(group.completions[0], short)))
