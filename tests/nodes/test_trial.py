"""`swarm tasks try`: questions, completions and rewards of a configuration, before a run."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from nodes.cli import main
from nodes.commands.tasks import Episode, _describe, _distinct, play, summary
from swarm.environments.episodes.number_guessing import NumberGuessingTask
from swarm.environments.task import PythonTask
from swarm.environments.verification.inline import InlineVerifier
from swarm.extras.pictures.tasks import MazeTask, ShapesTask
from swarm.policy.loading import Policy
from swarm.reasons import Reason
from swarm.types import Answers, Completion, Past, Question, Rejection, Sampling
from tests.sapo.test_round import FakeEngine

OWN = Path(__file__).parents[2] / "examples" / "own_task.py"
HALVE = PythonTask(kind="python", name="halve", target=f"{OWN}:Halve")


class Answering(FakeEngine):
    """Says 1 to every question, but refuses the second."""

    def generate(self, prompts: object, num_completions: int, sampling: Sampling, seed: int) -> list[Answers]:
        assert num_completions == 1
        right: Answers = (Completion("1", "stop"),)
        return [right, Rejection(Reason.PROMPT_TOO_LONG, "9 tokens"), (Completion("one", "stop"),)]


def test_each_question_has_a_reward_or_a_reason() -> None:
    verifier = InlineVerifier([HALVE])
    questions = verifier.draw(0, 0, 3)
    episodes = play(Answering(), verifier, questions, Sampling())
    half = int(str(questions[0].prompt).split()[1]) // 2
    assert episodes[0] == Episode("halve", str(questions[0].prompt), "1", 1 / half, expected=str(half), found="1")
    assert (episodes[1].reward, episodes[1].problem) == (None, "prompt_too_long: 9 tokens")
    assert (episodes[2].completion, episodes[2].reward) == ("one", 0.0)


class Guessing(FakeEngine):
    """Says 1, then 2, and so on."""

    def generate(self, prompts: object, num_completions: int, sampling: Sampling, seed: int) -> list[Answers]:
        assert isinstance(prompts, list)
        turns = [1 + len(each.steps) if isinstance(each, Past) else 1 for each in prompts]
        return [(Completion(f"{turn}?", "stop"),) for turn in turns]


def test_an_episode_of_several_turns_is_shown_with_what_the_environment_answers() -> None:
    verifier = InlineVerifier([NumberGuessingTask(highest=3, max_turns=2)])
    episodes = play(Guessing(), verifier, verifier.draw(0, 0, 20), Sampling())
    assert {(episode.completion, episode.reward) for episode in episodes} == {
        ("1?", 1.0),
        ("1?\n> higher\n2?", 1.0),
        ("1?\n> higher\n2?", 0.0),
    }


class Walking(FakeEngine):
    """Says left, then up, and so on."""

    def generate(self, prompts: object, num_completions: int, sampling: Sampling, seed: int) -> list[Answers]:
        assert isinstance(prompts, list)
        turns = [len(each.steps) if isinstance(each, Past) else 0 for each in prompts]
        return [(Completion(("left", "up", "right", "down")[turn % 4], "stop"),) for turn in turns]


def test_pictures_are_named_in_their_places() -> None:
    verifier = InlineVerifier([ShapesTask(kind="shapes"), MazeTask(kind="maze")])
    (counted,) = play(Walking(), verifier, verifier.draw(0, 0, 1, "shapes"), Sampling())
    assert counted.question.startswith("[image 32 x 32]\n") and counted.reward == 0
    (walked, *_) = play(Walking(), verifier, verifier.draw(0, 0, 4, "maze"), Sampling())
    assert walked.question == "[image 32 x 32]\nWalk from red to green: left, right, up or down."
    assert "[image 32 x 32]\nup" in walked.completion and walked.reward is not None


def test_episodes_are_shown_without_control_sequences() -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=80)
    console.print(_describe([Episode("halve", "Halve\n4.", "\x1b]52;c;x\x07[bold]2", 0.5, expected="2", found="2")]))
    console.print(_describe([Episode("halve", "Halve 4.", "", None, "prompt_too_long: 9 tokens")]))
    assert shown.getvalue().split("\n\n") == [
        "halve\n  question: Halve\n    4.\n  expected: 2\n  answer: ?]52;c;x?[bold]2\n  reward 0.5; found 2",
        "halve\n  question: Halve 4.\n  answer: \n  not graded: prompt_too_long: 9 tokens",
        "",
    ]


def test_an_answer_that_was_found_as_it_stands_is_shown_once() -> None:
    console = Console(file=io.StringIO(), width=80)
    answers = [Episode("halve", "4?", "1\n2", 0.5, found="1\n2"), Episode("halve", "4?", "So\n2", 0, found="2\n")]
    console.print(_describe(answers))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines()[2:] == [
        *("  answer: 1", "    2", "  reward 0.5", "  answer: So", "    2", "  reward 0; found 2", "    ", ""),
    ]


class Few(InlineVerifier):
    """Has three questions."""

    def draw(self, seed: int, start: int, count: int, task: str = "") -> list[Question]:
        return [InlineVerifier.draw(self, seed, index % 3, 1)[0] for index in range(start, start + count)]


def test_each_question_of_a_small_file_is_tried_once() -> None:
    few = Few([HALVE])
    assert _distinct(few, 0, 5) == few.draw(0, 0, 3) and _distinct(few, 0, 2) == few.draw(0, 0, 2)


def _answered(completion: str, reward: float, expected: str, found: str | None) -> Episode:
    return Episode("sums", "4 + 7?", completion, reward, expected=expected, found=found)


@pytest.mark.parametrize(
    ("episodes", "said"),
    [
        (
            [_answered("It is 11.", 0.0, "11", ""), _answered("12", 0.0, "11", "")],
            "0 of 2 rewarded: no answer was found in 2; `find: last_number` in the task finds the expected",
        ),
        ([_answered("It is Paris.", 0.0, "Paris", "")], "set `ask` and `find` to a form that the model keeps to"),
        ([_answered("No idea.", 0.0, "11", "No")], "nothing to learn from until some answers are rewarded"),
        (
            [Episode("sums", "4 + 7?", "", None, "prompt_too_long: 9 tokens")],
            "0 of 1 rewarded, 1 not graded; no answer was graded: each says why",
        ),
        ([_answered("11", 1.0, "11", "11")], "1 of 1 rewarded: there may be little left to learn"),
        ([_answered("11", 0.2, "11", "11"), _answered("12", 0.1, "11", "12")], "2 of 2 rewarded"),
        (
            [Episode("sums", "4 + 7?", "First, we", 0.0, expected="11", found="", is_cut=True)],
            "no answer was found in 1; 1 without reward were cut off: raise generation.max_new_tokens",
        ),
        (
            [_answered("11", 1.0, "11", "11"), _answered("It is 11!", 0.0, "11", "")],
            "1 of 2 rewarded: no answer was found in 1; `find: last_number` in the task finds the expected answer in 1",
        ),
        (
            [_answered("11", 1.0, "11", "11"), _answered("a", 0.0, "11", "")],
            "1 of 2 rewarded: no answer was found in 1",
        ),
    ],
)
def test_the_last_line_says_how_many_are_rewarded_and_what_would_find_answers(
    episodes: list[Episode], said: str
) -> None:
    assert said in summary(episodes)


@pytest.mark.slow
def test_the_command_asks_a_model(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    policy.save(tmp_path / "model")
    config = tmp_path / "mine.yaml"
    config.write_text(f"tasks: [{{kind: python, name: halve, target: '{OWN}:Halve', options: {{largest: 9}}}}]")
    arguments = ["swarm", "tasks", "try", str(config), "--model", str(tmp_path / "model"), "--questions", "3", "--json"]
    monkeypatch.setattr("sys.argv", [*arguments, "--generation.max_new_tokens", "4"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    episodes = json.loads(capsys.readouterr().out)
    assert len(episodes) == 3 and {episode["task"] for episode in episodes} == {"halve"}
    assert all(episode["question"].startswith("Calculate ") and 0 <= episode["reward"] <= 1 for episode in episodes)
