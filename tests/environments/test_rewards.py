"""Named rewards: their weighted mean, in this process and in the workers' sandbox, and agreement between members."""

from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace
from pydantic import ValidationError

from swarm.environments.answering import QuestionSettings
from swarm.environments.config import TASK_LIST, VerificationSettings
from swarm.environments.episodes.number_guessing import NumberGuessingTask
from swarm.environments.mixture import TaskMixture
from swarm.environments.rewards import OverlongReward, has_tags, overlong
from swarm.environments.specs import from_specs, to_specs
from swarm.environments.tiny import TINY_TASKS
from swarm.environments.verification.messages import Graded, GradeGroup, in_order
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import TaskError
from swarm.figures import values
from swarm.groups.building import with_grade
from swarm.groups.rollout_figures import rollout_figures
from swarm.reasons import Reason
from swarm.types import Completion, Grade, Rejection, Turn
from tests.example_groups import rollout_group

ANSWER = {"kind": "answer"}
JUDGE = {"kind": "judge", "model": "m", "rubric": "r"}
FORM = {"kind": "format", "weight": 0.5, "tags": ["think", "answer"]}
SHORT = {"kind": "overlong", "weight": 0.5, "max_chars": 100, "cache_chars": 50}
DIGITS = {"kind": "format", "name": "digits", "pattern": r"[0-9]+</answer>\z", "weight": 0}


def task(*rewards: dict[str, object]) -> QuestionSettings:
    values = {"kind": "reasoning_gym", "name": "gcd", "options": {"min_value": 2, "max_value": 60}, "rewards": rewards}
    (made,) = TASK_LIST.validate_python([values])
    assert isinstance(made, QuestionSettings)
    return made


def completions() -> list[str]:
    """Right and well-formed; right; wrong and well-formed; right, well-formed and long by half of the interval."""
    mixture = TaskMixture([task()])
    numbers = mixture.grade(mixture.question(0, 0).ref, [f"<answer>{number}</answer>" for number in range(1, 61)])
    assert isinstance(numbers, Grade)
    right = 1 + numbers.rewards.index(1.0)
    formed = f"<think>so</think>\n<answer>{right}</answer>"
    long = formed.replace("so", "so" + "." * (75 - len(formed)))
    return [formed, f"<answer>{right}</answer>", "<think>so</think><answer>x</answer>", long]


def graded(*rewards: dict[str, object]) -> Grade:
    mixture = TaskMixture([task(*rewards)])
    question = mixture.question(0, 0)
    grade = mixture.grade(question.ref, completions())
    assert isinstance(grade, Grade)
    return grade


def test_the_reward_is_the_weighted_mean_of_the_named_rewards() -> None:
    grade = graded(ANSWER, FORM, SHORT, DIGITS)
    assert grade.parts == {
        "answer": (1.0, 1.0, 0.0, 1.0),
        "format": (1.0, 0.0, 1.0, 1.0),
        "overlong": (1.0, 1.0, 1.0, 0.5),
        "digits": (1.0, 1.0, 0.0, 1.0),
    }
    assert grade.rewards == pytest.approx((1.0, 0.75, 0.5, 0.875))
    assert grade.answers == (1.0, 1.0, 0.0, 1.0)


def test_without_named_rewards_nothing_changes() -> None:
    grade = graded()
    assert grade.parts == {} and grade.rewards == grade.answers == (1.0, 1.0, 0.0, 1.0)


def test_the_sandbox_computes_the_same() -> None:
    rewards = (ANSWER, FORM, SHORT, DIGITS)
    with closing(VerificationPool([task(*rewards)], VerificationSettings())) as pool:
        (question,) = pool.draw(0, 0, 1)
        (verdict,) = pool.grade([(question.ref, completions())])
    assert isinstance(verdict, Grade)
    assert replace(verdict, seconds=0.0) == graded(*rewards)


@given(st.integers(1, 200), st.integers(1, 200), st.text(max_size=300))
def test_overlong_is_dapo_s_soft_punishment_plus_one(first: int, second: int, text: str) -> None:
    longest, cache = max(first, second), min(first, second)
    part = OverlongReward(kind="overlong", max_chars=longest, cache_chars=cache)
    if len(text) <= longest - cache:  # equation 13
        punishment = 0.0
    elif len(text) <= longest:
        punishment = ((longest - cache) - len(text)) / cache
    else:
        punishment = -1.0
    assert overlong(part, text) == pytest.approx(1 + punishment)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("<think>a</think><answer>b</answer>", True),
        (" <think>\n</think>\n\n<answer></answer>\n", True),
        ("<answer>b</answer><think>a</think>", False),
        ("<think>a</think>", False),
        ("a</think><answer>b</answer>", True),
        ("a\n</think>\n\n<answer>b</answer>", True),
        ("a</think></think><answer>b</answer>", False),
        ("<answer>b</answer>", False),
        ("</answer><answer>b</answer>", False),
        ("so <think>a</think><answer>b</answer>", False),
        ("<think>a</think><answer>b</answer> so", False),
        ("<think>a</think>x<answer>b</answer>", False),
        ("<think>a<think></think><answer>b</answer>", False),
        ("<think>a<answer></think>b</answer>", False),
        ("</think><think><answer>b</answer>", False),
        ("", False),
    ],
)
def test_the_form_of_tags(text: str, right: bool) -> None:
    assert has_tags(("think", "answer"), text) == right


def test_a_single_tag_needs_both_its_halves() -> None:
    assert has_tags(("answer",), "<answer>b</answer>") == 1 and has_tags(("answer",), "b</answer>") == 0


@pytest.mark.parametrize(
    "rewards",
    [
        [ANSWER, ANSWER],
        [{"kind": "answer", "weight": 0}],
        [{"kind": "answer", "weight": -1}],
        [{"kind": "format"}],
        [{"kind": "format", "tags": ["a"], "pattern": "b"}],
        [{"kind": "format", "pattern": "(a{1,300}){1,300}"}],
        [{"kind": "overlong", "max_chars": 10, "cache_chars": 11}],
        [ANSWER, JUDGE, {**JUDGE, "name": "second"}],
        [{"kind": "format", "name": f"f{number}", "tags": ["a"]} for number in range(9)],
    ],
)
def test_rewards_that_cannot_be_combined_are_refused(rewards: list[dict[str, object]]) -> None:
    with pytest.raises(ValidationError):
        task(*rewards)


def test_with_a_tool_the_form_is_that_of_the_answer_and_the_length_that_of_all_turns() -> None:
    values = {**task(ANSWER, FORM, SHORT).model_dump(mode="json"), "tool": "calculator", "max_turns": 3}
    mixture = TaskMixture(TASK_LIST.validate_python([values]))
    formed, *_ = completions()
    call = "<tool>2</tool>"
    long = call.replace("2", "2" + " " * (75 - len(call) - len(formed)))
    episodes = [(call, formed), formed, (formed, call), (long, formed), (call, call, call)]
    grade = mixture.grade(mixture.question(0, 0).ref, episodes[:2] + episodes[3:])
    assert isinstance(grade, Grade)
    assert grade.parts == {
        "answer": (1.0, 1.0, 1.0, 0.0),
        "format": (1.0, 1.0, 1.0, 0.0),
        "overlong": (1.0, 1.0, 0.5, 1.0),
    }
    assert isinstance(mixture.grade(mixture.question(0, 0).ref, [episodes[2]]), Rejection), "it answered, and went on"


def game(*rewards: dict[str, object]) -> tuple[NumberGuessingTask, TaskMixture]:
    values = {"kind": "number_guessing", "progress": 0.5, "rewards": rewards}
    (made,) = TASK_LIST.validate_python([values])
    assert isinstance(made, NumberGuessingTask)
    return made, TaskMixture([made])


def test_in_an_environment_what_turns_earn_is_a_part_of_the_mean() -> None:
    plain, combined = (game(*rewards)[1] for rewards in ((), (ANSWER, SHORT)))
    episodes = [("4", str(guess)) for guess in (1, 2, 3, 5, 6, 7)]
    ref = plain.question(0, 1).ref
    before = plain.grade(ref, episodes)
    grade = combined.grade(combined.question(0, 1).ref, episodes)
    assert isinstance(before, Grade) and isinstance(grade, Grade)
    assert grade.answers == before.rewards and len(set(before.rewards)) > 1
    assert grade.rewards == pytest.approx([(reward + 0.5) / 1.5 for reward in before.rewards])
    turns = tuple(Completion("4" + last, "stop", turns=(Turn(1, 0, "stop"),) * 2) for _, last in episodes)
    group = replace(rollout_group(texts="abcdef"), completions=turns)
    for index in range(len(episodes)):
        alone, mixed = (with_grade(group, each).turn_rewards(index) for each in (before, grade))
        assert alone[0] > 0 and mixed == pytest.approx([alone[0] / 1.5, (alone[1] + 0.5) / 1.5])


def test_members_of_a_game_agree_on_its_rewards_and_without_any_nothing_changes() -> None:
    plain, theirs = game(), game(FORM)
    assert "rewards" not in plain[0].options and "rewards" in theirs[0].options
    verdict = plain[1].grade(theirs[1].question(0, 0).ref, ["4"])
    assert isinstance(verdict, Rejection) and verdict.reason == Reason.OPTIONS_DIFFER
    assert from_specs(to_specs([theirs[0]])) == (theirs[0],)


def test_a_pattern_that_does_not_compile_is_an_error_of_the_task() -> None:
    with pytest.raises(TaskError, match="RE2"):
        TaskMixture([task({"kind": "format", "pattern": "(?=a)"})])


@pytest.mark.parametrize("other", [(), (ANSWER, FORM), (FORM, SHORT), ({**FORM, "weight": 0.4}, ANSWER)])
def test_members_with_other_rewards_are_refused(other: tuple[dict[str, object], ...]) -> None:
    ours = TaskMixture([task({**FORM, "weight": 0.4}, SHORT)])
    question = TaskMixture([task(*other)]).question(0, 0)
    verdict = ours.grade(question.ref, ["<answer>1</answer>"])
    assert isinstance(verdict, Rejection) and verdict.reason == Reason.OPTIONS_DIFFER


def test_a_manifest_carries_the_rewards() -> None:
    ours = task(ANSWER, FORM, SHORT, DIGITS)
    (theirs,) = from_specs(to_specs([ours]))
    assert theirs == ours
    assert TaskMixture([theirs]).question(0, 0) == TaskMixture([ours]).question(0, 0)
    assert TaskMixture(TINY_TASKS[:1]).question(0, 0).ref.options_digest  # without rewards as ever


def test_each_reward_is_a_figure_by_its_name() -> None:
    grade = graded(ANSWER, FORM)
    group, plain = (with_grade(rollout_group(texts="abcd"), each) for each in (grade, graded()))
    figures = values(rollout_figures([group, plain, group]))
    assert figures["rewards/answer/mean"] == 0.75 and figures["rewards/format/mean"] == 0.75
    assert {name for name in values(rollout_figures([plain])) if name.startswith("rewards/")} == set()


def test_a_worker_that_was_taken_over_cannot_name_rewards() -> None:
    grade = graded(ANSWER, FORM)
    asked = GradeGroup(TaskMixture([task()]).question(0, 0).ref, ("a", "b", "c", "d"))
    tasks = {"gcd": {"answer", "format"}}
    assert in_order(asked, Graded(grade, {}), tasks)
    bad = [
        {},
        {**grade.parts, "more": grade.rewards},
        {**grade.parts, "format": grade.rewards[:2]},
        {**grade.parts, "format": (0.0, 0.0, 0.0, 1.5)},
        {**grade.parts, "format": (0.0, 0.0, 0.0, float("nan"))},
    ]
    assert not any(in_order(asked, Graded(replace(grade, parts=parts), {}), tasks) for parts in bad)
