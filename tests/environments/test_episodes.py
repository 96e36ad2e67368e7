"""Episodes: an environment by hand, its replay with the limits, and the same by every verifier."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from msgspec import DecodeError
from msgspec.structs import replace

from swarm.environments.answering import MAX_PROMPT_CHARS
from swarm.environments.config import Failures, TaskConfig, VerificationSettings
from swarm.environments.episodes.number_guessing import NumberGuessing, NumberGuessingTask
from swarm.environments.episodes.source import EnvironmentSource
from swarm.environments.mixture import MAX_OBSERVATION_CHARS, Replay, TaskMixture, replay
from swarm.environments.specs import from_specs, to_specs
from swarm.environments.tiny import TINY_TASKS
from swarm.environments.verification.inline import InlineVerifier
from swarm.environments.verification.messages import (
    Graded,
    GradeGroup,
    decode_reply,
    encode,
    in_order,
)
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import Refusal, TaskError
from swarm.protocols import Verifier
from swarm.types import EpisodeRef, Grade, Observation, Rejection, StepReward, Terminal, Text, earned, observation_text

GAME = NumberGuessingTask()
HIGHER, LOWER = (Text("higher"),), (Text("lower"),)


class Patient:
    """Answers every action with itself, twice, and ends at `stop`."""

    def step(self, action: str) -> Observation | Terminal:
        return Terminal(0.5) if action == "stop" else (Text(action), Text(action))


def hidden(task: NumberGuessingTask, seed: int, index: int) -> int:
    """The number of an episode, by asking for every one."""
    numbers = range(1, task.highest + 1)
    for number in numbers:
        game = NumberGuessing(task.highest)
        game.reset(seed, index)
        if game.step(str(number)) == Terminal(1.0):
            return number
    raise AssertionError("no number is right")


def test_number_guessing_by_hand() -> None:
    number, game = hidden(GAME, 3, 4), NumberGuessing(7)
    assert observation_text(game.reset(3, 4)) == "Guess my number from 1 to 7."
    assert game.step("0") == HIGHER and game.step("let it be 12, no, 99") == LOWER
    assert game.step("I don't know") == (Text("Guess a number."),)
    assert game.step(f"not {number + 1} but {number}") == Terminal(1.0)
    assert {hidden(GAME, 3, index) for index in range(60)} == set(range(1, 8))


def test_turns_that_leave_fewer_numbers_earn_a_part_of_the_return() -> None:
    number = hidden(GAME, 3, 4)
    guesses = [str(guess) for guess in (0, 4, 2, 6, 1, 3, 5, 7) if guess != number]
    game = NumberGuessing(7, progress=0.5)
    game.reset(3, 4)
    played = replay(game, (*guesses, str(number)), 99)
    assert played.reward == pytest.approx(1.0)
    rewards = [earned(shown) for shown in played.observations]
    assert rewards == [round(each, 9) for each in rewards], "logarithms of other systems have other last bits"
    assert rewards[0] == 0 and all(0 <= each <= 0.5 for each in rewards) and max(rewards) > 0
    game.reset(3, 4)
    unfinished = replay(game, tuple(guesses), 99)
    assert unfinished.reward == pytest.approx(sum(rewards)) and unfinished.reward <= 0.5
    assert observation_text(played.observations[1]) in ("higher", "lower"), "no policy sees what a turn earned"


class Paying:
    """Every action earns the number that it is."""

    def step(self, action: str) -> Observation | Terminal:
        return (Text("more?"), StepReward(float(action)))


def test_turns_add_up_to_the_return_which_is_at_most_1() -> None:
    assert replay(Paying(), ("0.25", "0.5"), 9).reward == 0.75
    assert replay(Paying(), ("0.25", "0.5"), 2).reward == 0.75, "the last turn counts where the limit ends the episode"
    assert replay(Paying(), ("0.75", "0.75"), 9).reward == 1.0


def test_a_replay_ends_with_the_episode_and_goes_on_where_it_may() -> None:
    said = (Text("a"), Text("a"))
    assert replay(Patient(), "a", 3) == Replay((said,), 0.0)
    assert replay(Patient(), ("a", "stop"), 3) == Replay((said,), 0.5)
    assert replay(Patient(), "stop", 1) == Replay((), 0.5)
    for actions in (("stop", "a"), ("a", "stop", "stop")):
        with pytest.raises(Refusal, match="episode_mismatch"):
            replay(Patient(), actions, 3)


def test_the_limit_of_turns_ends_an_episode_without_a_return() -> None:
    said = (Text("a"), Text("a"))
    assert replay(Patient(), ("a", "a"), 2) == Replay((said,), 0.0)
    with pytest.raises(Refusal, match="ends with turn 2, got 3"):
        replay(Patient(), ("a", "a", "stop"), 2)


def test_an_observation_is_cut_off_over_all_its_parts() -> None:
    length = MAX_OBSERVATION_CHARS - 2
    (observation,) = replay(Patient(), "x" * length, 2).observations
    assert [part.text for part in observation] == ["x" * length, "xx"]
    (observation,) = replay(Patient(), "x" * (2 * length), 2).observations
    assert [len(part.text) for part in observation] == [MAX_OBSERVATION_CHARS, 0]


class Failing(NumberGuessing):
    """Fails as often as an environment can."""

    def reset(self, seed: int, index: int) -> Observation:
        if seed == 13:
            raise KeyError("no such start")
        return super().reset(seed, index)

    def step(self, action: str) -> Observation | Terminal:
        return {"nan": Terminal(math.nan), "two": Terminal(2.0)}.get(action) or super().step(str(int(action)))


def test_an_environment_that_fails_is_data_and_not_a_crash() -> None:
    counts = Failures()
    source = EnvironmentSource(GAME, lambda: Failing(7), counts)
    question = source.question(7, 0)
    number = hidden(GAME, 7, 0)
    for said, reward in ((str(number), 1.0), ("not a number", 0.0), ("nan", 0.0), ("two", 0.0)):
        assert replay(source.begin(question.ref), said, 3) == Replay((), reward)
    assert counts == {"environment_failures": 3}
    with pytest.raises(TaskError, match="cannot start episode 0 of stream 13"):
        source.question(13, 0)
    for ask in (source.recall, source.begin):
        with pytest.raises(Refusal, match="question_mismatch"):
            ask(replace(question.ref, seed=13))


@pytest.fixture(scope="module", params=["inline", "pool"])
def verifier(request: pytest.FixtureRequest) -> Iterator[Verifier]:
    tasks: tuple[TaskConfig, ...] = (GAME,)
    made: Verifier = InlineVerifier(tasks)
    if request.param == "pool":
        made = VerificationPool(tasks, VerificationSettings())
    yield made
    made.close()


def test_a_group_is_replayed_each_episode_from_its_start(verifier: Verifier) -> None:
    question = next(q for q in verifier.draw(7, 0, 50) if hidden(GAME, 7, q.ref.index) == 4)
    assert (question.prompt, question.max_turns) == ("Guess my number from 1 to 7.", 3)
    assert question.ref == EpisodeRef(
        "number_guessing", "number_guessing", question.ref.options_digest, 7, question.ref.index,
        question.ref.question_hash,
    )  # fmt: skip
    grade = verifier.begin_grading(question.ref, ["4", "2", ("2", "6"), ("6", "5", "4"), ("1", "2", "3")]).result()
    assert isinstance(grade, Grade)
    assert grade.prompt == question.prompt
    assert grade.rewards == (1.0, 0.0, 0.0, 1.0, 0.0)
    assert grade.observations == ((), (HIGHER,), (HIGHER, LOWER), (LOWER, LOWER), (HIGHER, HIGHER))
    (first,) = verifier.grade([(question.ref, ["4", "4"])])
    assert replace(first, seconds=0.0) == Grade(question.prompt, (1.0, 1.0)), "nothing was observed after the start"
    (late,) = verifier.grade([(question.ref, ["4", ("4", "4")])])
    assert isinstance(late, Rejection) and late.reason == "episode_mismatch"


def test_another_start_is_refused_by_name(verifier: Verifier) -> None:
    (question,) = verifier.draw(7, 0, 1)
    changes = ({"task": "chess"}, {"environment": "chess"}, {"options_digest": "x"}, {"question_hash": "x"})
    results = verifier.grade([(replace(question.ref, **change), ["1"]) for change in changes])
    reasons = [result.reason for result in results if isinstance(result, Rejection)]
    assert reasons == ["unknown_task", "unknown_task", "options_differ", "question_mismatch"]


def test_a_question_is_an_episode_of_one_turn() -> None:
    mixture = TaskMixture(TINY_TASKS)
    question = mixture.question(1, 0)
    assert question.max_turns == 1
    assert isinstance(mixture.grade(question.ref, ["<answer>1</answer>"]), Grade)
    refused = mixture.grade(question.ref, [("<answer>1</answer>", "<answer>2</answer>")])
    assert isinstance(refused, Rejection) and refused.reason == "episode_mismatch"


def test_all_settings_of_an_environment_must_agree_and_are_in_the_manifest() -> None:
    other = NumberGuessingTask(max_turns=4)
    asked = TaskMixture([GAME]).question(1, 0)
    refused = TaskMixture([other]).grade(asked.ref, ["1"])
    assert isinstance(refused, Rejection) and refused.reason == "options_differ"
    assert from_specs(to_specs([other])) == (other,)


def test_no_worker_can_make_up_more_than_its_episodes_have() -> None:
    ref = TaskMixture([GAME]).question(1, 0).ref
    request = GradeGroup(ref, ("1", ("1", "2")))

    def accepts(*observations: tuple[Observation, ...]) -> bool:
        return in_order(request, Graded(Grade("", (0.0, 0.0), 0.0, observations), {}), {"number_guessing": ()})

    assert accepts() and accepts((), ()) and accepts((LOWER,), (LOWER, LOWER))
    assert not accepts((LOWER, LOWER), ()) and not accepts((LOWER,)) and not accepts((), (), ())
    assert accepts((), ((Text("x" * (MAX_PROMPT_CHARS - 1)),),))
    assert not accepts((), ((Text("x" * MAX_PROMPT_CHARS),),))
    assert not accepts(((Text(""),) * (MAX_PROMPT_CHARS + 1),), ()), "empty parts take memory, too"
    for reward in (math.nan, math.inf, -0.5, 1.5):
        sent = encode(Graded(Grade("", (0.0, 0.0), 0.0, (((StepReward(reward),),), ())), {}))
        with pytest.raises(DecodeError):
            decode_reply(sent)
