"""Tools, and questions that may be answered with one."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace
from pydantic import ValidationError

from swarm.environments.config import TaskConfig, VerificationSettings
from swarm.environments.mixture import TaskMixture
from swarm.environments.scoring.expressions import MAX_BITS
from swarm.environments.sources.reasoning_gym import ReasoningGymTask
from swarm.environments.specs import from_specs, to_specs
from swarm.environments.tiny import TINY_TOOL_TASK
from swarm.environments.tools.calculator import Calculator
from swarm.environments.verification.inline import InlineVerifier
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import TaskError
from swarm.protocols import Verifier
from swarm.types import Grade, Message, Rejection, Text, as_text, in_words, tools_of
from swarm.types.calls import MAX_CALL_CHARS, TOO_LONG, TaggedCall, calls_in

ASKED = ReasoningGymTask(name="products", tool="calculator")


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("1234 * 5678", "7006652"),
        ("(1 + 2) * -3", "-9"),
        ("2**10 / 4", "256"),
        ("1/8", "0.125"),
        ("-1/8", "-0.125"),
        ("1/3 + 1/6", "0.5"),
        ("1/3", "1/3"),
        (".5 + 0.25", "0.75"),
        ("(1/2)**-3", "8"),
        ("1**(10**40)", "1"),
        ("1/0", "error: division by zero"),
        ("0**-1", "error: division by zero"),
        ("2**(2**4000)", f"error: a number must have at most {MAX_BITS} bits"),
        ("2**0.5", "error: an exponent must be a whole number"),
        ("import os", "error: expected the end, got 'os'"),
        ("x + 1", "error: must be numbers alone, got 'x'"),
        ("", "error: an operand is missing before 'the end'"),
    ],
)
def test_the_calculator_by_hand(call: str, result: str) -> None:
    assert Calculator().run(call) == result


NUMBERS = st.integers(0, 10**6)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("+-*/"), NUMBERS), max_size=8), NUMBERS)
def test_the_calculator_is_exact(steps: list[tuple[str, int]], first: int) -> None:
    text, value = str(first), Fraction(first)
    for symbol, number in steps:
        if symbol == "/" and number == 0:
            continue
        text = f"({text}) {symbol} {number}"
        apply = {"+": value + number, "-": value - number, "*": value * number}
        value = value / number if symbol == "/" else apply[symbol]
    assert Fraction(Calculator().run(text)) == value


def test_the_last_closed_pair_is_the_call() -> None:
    assert calls_in("so <tool>1</tool> or <tool> 2 </tool>, I say") == (TaggedCall("2"),)
    assert calls_in("<tool>a <tool>b</tool>") == (TaggedCall("b"),)
    assert calls_in("<tool>1") == calls_in("1</tool>") == calls_in("</tool><tool>") == ()


def test_a_question_says_how_to_call() -> None:
    """Apart from the question: a policy with calls of its own is told in its own way."""

    def in_the_words_of(task: TaskConfig) -> str:
        (question,) = InlineVerifier((task,)).draw(1, 0, 1)
        assert question.max_turns == 4 and isinstance(question.prompt[0], Message)
        assert "<tool>" not in as_text(question.prompt)
        return as_text(in_words(question.prompt))

    boxed = ASKED.model_copy(update={"find": "boxed"})
    assert in_the_words_of(boxed).index("\\boxed{}") < in_the_words_of(boxed).index("<tool>12 * (3.5")
    assert "<tool>" not in in_the_words_of(ASKED.model_copy(update={"ask": ""}))
    two = ReasoningGymTask(name="products", tools=["calculator", {"tool": "search.py:search", "name": "look_up"}])
    words = in_the_words_of(two)
    assert '<tool>{"name"' in words and "calculator: Works" in words and "look_up: " in words
    (asked,) = InlineVerifier((two,)).draw(1, 0, 1)
    told = tools_of(asked.prompt)
    assert told is not None and [each.name for each in told.schemas] == ["calculator", "look_up"]


@pytest.fixture(scope="module", params=["inline", "pool"])
def verifier(request: pytest.FixtureRequest) -> Iterator[Verifier]:
    tasks: tuple[TaskConfig, ...] = (TINY_TOOL_TASK,)
    made: Verifier = InlineVerifier(tasks)
    if request.param == "pool":
        made = VerificationPool(tasks, VerificationSettings())
    yield made
    made.close()


def product(question: str) -> tuple[str, str]:
    """A question's call, and its result."""
    words = question.split()
    left, right = (int(word.strip(".")) for word in words if word.strip(".").isdigit())
    return f"<tool>{left} * {right}</tool>", str(left * right)


def test_an_episode_ends_with_the_answer(verifier: Verifier) -> None:
    (question,) = verifier.draw(7, 0, 1)
    assert question.max_turns == 2
    call, result = product(as_text(question.prompt))
    said = [call, (call, f"<answer>{result}</answer>"), f"<answer>{result}</answer>", (call, "<answer>1</answer>")]
    grade = verifier.begin_grading(question.ref, [*said, (call, call), "<tool>" + "1" * 9_000 + "</tool>"]).result()
    assert isinstance(grade, Grade)
    assert grade.rewards == (0.0, 1.0, 1.0, 0.0, 0.0, 0.0)
    shown = (Text(result, "calculator"),)
    too_long = (Text(f"error: {TOO_LONG}", "calculator"),)
    assert grade.observations == ((shown,), (shown,), (), (shown,), (shown,), (too_long,))
    (late,) = verifier.grade([(question.ref, [("<answer>1</answer>", "2")])])
    assert isinstance(late, Rejection) and late.reason == "episode_mismatch"


def test_members_must_use_the_same_tool() -> None:
    others = [ASKED.model_copy(update=update) for update in ({"tool": None}, {"max_turns": 5}, {})]
    own, *_, same = (TaskMixture((task,)) for task in (ASKED, *others))
    for task in others[:2]:
        theirs = TaskMixture((task,))
        for mixture, asker in ((own, theirs), (theirs, own)):
            refused = mixture.grade(asker.question(1, 0).ref, ["1"])
            assert isinstance(refused, Rejection) and refused.reason == "options_differ"
    assert isinstance(same.grade(own.question(1, 0).ref, ["1"]), Grade)
    stolen = replace(own.question(1, 0).ref, question_hash="x")
    refused = own.grade(stolen, ["1"])
    assert isinstance(refused, Rejection) and refused.reason == "question_mismatch"


def test_a_manifest_carries_the_tool() -> None:
    (spec,) = to_specs([TINY_TOOL_TASK])
    assert spec.settings["tool"] == "calculator"
    assert from_specs([spec]) == (TINY_TOOL_TASK,)
    assert "tool" not in to_specs([ReasoningGymTask(name="products")])[0].settings
    with pytest.raises(ValidationError, match="calculator"):
        ReasoningGymTask.model_validate({"name": "products", "tool": "shell"})


def test_without_the_extra_the_python_tool_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.extras.wasm.python.find_spec", lambda name: None)
    with pytest.raises(TaskError, match="make install-tools"):
        TaskMixture((ReasoningGymTask(name="products", tool="python"),))


def test_the_longest_call_is_answered() -> None:
    assert Calculator().run("1+" * (MAX_CALL_CHARS // 2)).startswith("error: must be at most 4000 characters")
