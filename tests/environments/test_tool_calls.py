"""Several tools of one task: calls are checked by their schemas, and a bad one is answered, never an error."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import ValidationError

from swarm.environments.config import TaskConfig, VerificationSettings
from swarm.environments.mixture import MAX_OBSERVATION_CHARS, TaskMixture
from swarm.environments.sources.reasoning_gym import ReasoningGymTask
from swarm.environments.specs import from_specs, left_out, to_specs, why_left_out
from swarm.environments.task import PythonTask
from swarm.environments.tools.base import MAX_ERROR_CHARS, UNKNOWN
from swarm.environments.tools.custom import with_custom_tools
from swarm.environments.tools.schema import check_schema, only_text, problem_with, with_texts
from swarm.environments.verification.inline import InlineVerifier
from swarm.environments.verification.messages import Draw, Drawn, in_order
from swarm.environments.verification.pool import VerificationPool
from swarm.protocols import Verifier
from swarm.types import Grade, Observation, PendingCall, Question, Rejection, Text, ToolResult, Tools, as_text, tools_of
from swarm.types.calls import CLOSE, MAX_CALLS, NO_END, OPEN, TOO_MANY
from tests.environments.test_tool_use import product
from tests.policy.test_calling import HOSTILE

SEARCH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1, "maxLength": 20},
        "count": {"type": "integer", "minimum": 1, "maximum": 5},
        "kinds": {"type": "array", "items": {"type": "string", "enum": ["book", "page"]}, "maxItems": 2},
        "within": {"type": "object", "properties": {"year": {"type": ["integer", "null"]}}},
    },
    "required": ["query"],
}
OPTIONS = {"min_terms": 2, "max_terms": 2, "min_digits": 4, "max_digits": 4}
TWO = ReasoningGymTask(
    name="products",
    options=OPTIONS,
    max_turns=3,
    tools=[
        "calculator",
        {"tool": "search.py:search", "name": "search", "description": "Look up.", "parameters": SEARCH},
    ],
)


def call(name: str, arguments: object) -> str:
    return f"{OPEN}{json.dumps({'name': name, 'arguments': arguments})}{CLOSE}"


@pytest.fixture(scope="module", params=["inline", "pool"])
def verifier(request: pytest.FixtureRequest) -> Iterator[Verifier]:
    made: Verifier = InlineVerifier([TWO])
    if request.param == "pool":
        made = VerificationPool([TWO], VerificationSettings())
    yield made
    made.close()


@pytest.fixture(scope="module")
def question(verifier: Verifier) -> Question:
    (drawn,) = verifier.draw(7, 0, 1)
    return drawn


def observed(verifier: Verifier, question: Question, said: str) -> Observation | None:
    """What follows a turn; None for an answer."""
    grade = verifier.begin_grading(question.ref, [said]).result()
    assert isinstance(grade, Grade)
    return grade.observed(0)[0] if grade.observed(0) else None


def test_every_call_of_a_turn_has_its_result(verifier: Verifier, question: Question) -> None:
    said = f"so {call('calculator', {'expression': '6 * 7'})}\n{call('search', {'query': 'seven', 'count': 2})}"
    assert observed(verifier, question, said) == (
        Text("42", "calculator"),
        PendingCall('{"query": "seven", "count": 2}', "search"),
    )


def test_every_form_of_a_call_is_the_same_call_and_ends_in_the_same_grade(
    verifier: Verifier, question: Question
) -> None:
    tagged, result = product(as_text(question.prompt))
    expression = tagged.removeprefix("<tool>").removesuffix("</tool>")
    body = {"name": "calculator", "arguments": {"expression": expression}}
    forms = [
        f"{OPEN}\n{json.dumps(body)}\n{CLOSE}",
        f"<think>no {call('search', {})}</think>{OPEN}{json.dumps(body)}{CLOSE}",
        f"<tool>{json.dumps(body)}</tool>",
        json.dumps(body),
        json.dumps({"name": "calculator", "parameters": {"expression": expression}}),
        json.dumps([{"id": "1", "type": "function", **body}]),
        f"```json\n{json.dumps(body)}\n```",
        json.dumps({"type": "function", "function": body}),
    ]
    episodes = [(form, f"<answer>{result}</answer>") for form in forms]
    grade = verifier.begin_grading(question.ref, episodes).result()
    assert isinstance(grade, Grade) and grade.rewards == (1.0,) * len(forms)
    assert set(grade.observations) == {((Text(result, "calculator"),),)}


@pytest.mark.parametrize(
    ("said", "problem", "tool"),
    [
        (call("shell", {"command": "ls"}), "there is no such tool; there is calculator, search", UNKNOWN),
        (call("calculator", {}), "expression is missing", "calculator"),
        (call("calculator", {"expression": "1", "y": 2}), "there is no argument y", "calculator"),
        (call("calculator", {"expression": "1/0"}), "division by zero", "calculator"),
        (call("search", {"query": ""}), "query must have at least 1 characters, got 0", "search"),
        (call("search", {"query": "x" * 21}), "query must have at most 20 characters, got 21", "search"),
        (call("search", {"query": "x", "count": 6}), "count must be at most 5, got 6", "search"),
        (call("search", {"query": "x", "count": True}), "count must be of type integer, got true", "search"),
        (call("search", {"query": "x", "count": 1.0}), "count must be of type integer, got 1.0", "search"),
        (call("search", {"query": "x", "kinds": ["book"] * 3}), "kinds must have at most 2 items, got 3", "search"),
        (
            call("search", {"query": "x", "kinds": ["film"]}),
            'kinds[0] must be one of ["book", "page"], got "film"',
            "search",
        ),
        (
            call("search", {"query": "x", "within": {"year": "1"}}),
            'within.year must be of type integer or null, got "1"',
            "search",
        ),
        (call("search", {"query": "x", "within": {"day": 1}}), "there is no argument within.day", "search"),
        (call("calculator", {"expression": "1"})[:-3], NO_END, UNKNOWN),
        (call("calculator", {"expression": "1"}) * (MAX_CALLS + 1), TOO_MANY, UNKNOWN),
    ],
)
def test_a_bad_call_is_answered_with_what_is_wrong(
    verifier: Verifier, question: Question, said: str, problem: str, tool: str
) -> None:
    assert observed(verifier, question, said) == (Text(f"error: {problem}", tool),)


@pytest.mark.parametrize(("given", "result"), [(7, "7"), (0.5, "0.5"), (-12, "-12")])
def test_a_tool_that_takes_a_text_gets_a_number_as_one(
    verifier: Verifier, question: Question, given: float, result: str
) -> None:
    """Qwen3-Coder and GLM write both alike."""
    assert observed(verifier, question, call("calculator", {"expression": given})) == (Text(result, "calculator"),)


def test_a_value_of_no_other_allowed_type_is_a_text() -> None:
    schema = {"type": "object", "properties": {"a": {"type": ["string", "null"]}, "b": {"type": ["string", "number"]}}}
    given = {"a": 7, "b": 7, "c": 7}
    assert with_texts(given, schema) == {"a": "7", "b": 7, "c": 7}
    assert with_texts({"a": None, "b": None}, schema) == {"a": None, "b": None}


def test_a_bad_call_ends_no_episode(verifier: Verifier, question: Question) -> None:
    _, result = product(as_text(question.prompt))
    episode = (call("calculator", {"x": 1}), f"<answer>{result}</answer>")
    grade = verifier.begin_grading(question.ref, [episode, (call("shell", {}),) * 3]).result()
    assert isinstance(grade, Grade) and grade.rewards == (1.0, 0.0)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_calls_are_answered_briefly(verifier: Verifier, question: Question, name: str) -> None:
    began = time.monotonic()
    shown = observed(verifier, question, HOSTILE[name])
    assert shown is not None and all(isinstance(part, Text) and part.tool == UNKNOWN for part in shown)
    assert all(part.text.startswith("error: ") and len(part.text) <= MAX_ERROR_CHARS for part in shown)
    assert time.monotonic() - began < 5


def test_only_a_turns_answer_calls(verifier: Verifier, question: Question) -> None:
    """Neither its thought, nor a question or a result with calls in it."""
    inside = call("calculator", {"expression": "6 * 7"})
    for said in (
        f"<think>{inside}</think><answer>1</answer>",
        f"<think>{inside}",
        f"{inside}</think><answer>1</answer>",
    ):
        assert observed(verifier, question, said) is None


def test_a_question_that_has_a_call_is_none(tmp_path: Path) -> None:
    inside = call("calculator", {"expression": "6 * 7"})
    own = tmp_path / "calls.py"
    own.write_text(
        "from swarm.environments.task import Task\n\nclass Calls(Task):\n"
        f"    def question(self, random):\n        return {inside!r} + str(random.random()), '7'\n"
        "    def reward(self, question, completion, reference):\n        return float('7' in completion)\n"
    )
    mixture = TaskMixture([PythonTask(kind="python", name="calls", target=f"{own}:Calls", tool="calculator")])
    asked = mixture.question(1, 0)
    assert inside in as_text(asked.prompt)
    grade = mixture.grade(asked.ref, ["7", inside])
    assert isinstance(grade, Grade) and grade.rewards == (1.0, 0.0)
    assert grade.observations == ((), ((Text("42", "calculator"),),))


def test_results_of_all_calls_of_a_turn_are_bounded_together(tmp_path: Path) -> None:
    (tmp_path / "flood.py").write_text("def flood(call):\n    return 'x' * 10**6\n")
    task = ReasoningGymTask(name="products", tool=f"{tmp_path}/flood.py:flood")
    verifier = with_custom_tools(InlineVerifier([task]), [task])
    (question,) = verifier.draw(1, 0, 1)
    grade = verifier.begin_grading(question.ref, [call("tool", {"call": "x"}) * MAX_CALLS]).result()
    assert isinstance(grade, Grade)
    sizes = [len(part.text) for part in grade.observed(0)[0]]
    assert len(sizes) == MAX_CALLS and max(sizes) <= MAX_OBSERVATION_CHARS
    verifier.close()


CODE = """
made = []

def search(query, count=1, kinds=(), within=None):
    made.append((query, count))
    return f"{query} {count} {len(made)}"

def plain(text):
    return text.upper()
"""


def own_tools(tmp_path: Path) -> TaskConfig:
    (tmp_path / "own.py").write_text(CODE)
    tools = [
        "calculator",
        {"tool": f"{tmp_path}/own.py:search", "name": "search", "parameters": SEARCH},
        {"tool": f"{tmp_path}/own.py:plain", "name": "shout"},
    ]
    return TWO.model_validate({**TWO.model_dump(mode="json"), "tools": tools})


def test_custom_functions_get_the_arguments_of_their_schema(tmp_path: Path) -> None:
    task = own_tools(tmp_path)
    verifier = with_custom_tools(InlineVerifier([task]), [task])
    (question,) = verifier.draw(1, 0, 1)
    said = (
        call("search", {"query": "a", "count": 3})
        + call("shout", {"call": "hey"})
        + call("search", {"query": "a"})
        + call("search", {"count": 1})
    )
    wanted = (
        ToolResult("a 3 1", "search"),
        ToolResult("HEY", "shout"),
        ToolResult("a 1 2", "search"),
        Text("error: query is missing", "search"),
    )
    for _ in range(2):
        grade = verifier.begin_grading(question.ref, [said]).result()
        assert isinstance(grade, Grade) and grade.observed(0) == (wanted,), "each is called once"
    verifier.close()


def test_a_manifest_has_the_tools_with_their_schemas_and_no_code(tmp_path: Path) -> None:
    task = own_tools(tmp_path)
    (spec,) = to_specs([task], trusted=["somebody"])
    assert str(tmp_path) not in str(spec.settings)
    assert "it trusts none" in (why_left_out(spec) or "")
    (theirs,) = from_specs([spec], trusted=["somebody"])
    assert [each.tool for each in theirs.all_tools] == ["calculator", "trusted", "trusted"]
    assert not theirs.is_asked and theirs.all_tools[1].parameters == SEARCH
    mixture = TaskMixture([theirs, ReasoningGymTask(name="gcd")])
    ref = TaskMixture([task]).question(1, 0).ref
    grade = mixture.grade(ref, [call("search", {"query": "a"})])
    assert isinstance(grade, Grade) and grade.observed(0) == ((PendingCall('{"query": "a"}', "search"),),)
    hostile = {**spec.settings, "tools": [{"tool": f"{tmp_path}/own.py:search"}]}
    assert "tool" in (why_left_out(replace(spec, settings=hostile)) or "")
    for broken in ([7], [{"name": "x"}], [{"tool": 7}], "calculator", [{"tool": "calculator", "parameters": SEARCH}]):
        assert left_out([replace(spec, settings={**spec.settings, "tools": broken})]), broken


def test_members_must_have_the_same_tools() -> None:
    others: list[dict[str, Any]] = [
        {"tools": ["calculator"]},
        {"tools": [TWO.tools[1], TWO.tools[0]]},
        {"tools": [{"tool": "calculator", "name": "sum"}, TWO.tools[1]]},
        {"tools": [TWO.tools[0], {**TWO.tools[1].model_dump(), "parameters": {**SEARCH, "required": []}}]},
        {"tools": [], "tool": "calculator"},
        {"tools": []},
    ]
    own = TaskMixture([TWO])
    for other in others:
        theirs = TaskMixture([ReasoningGymTask.model_validate({**TWO.model_dump(), **other})])
        refused = own.grade(theirs.question(1, 0).ref, ["1"])
        assert isinstance(refused, Rejection) and refused.reason == "options_differ", other


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tool": "calculator", "tools": ["calculator"]}, "exclude each other"),
        ({"tools": ["calculator", "calculator"]}, "two are called 'calculator'"),
        ({"tools": ["a.py:f", "b.py:g"]}, "two are called 'tool'"),
        ({"tools": ["calculater"]}, "calculator"),
        ({"tools": [{"tool": "calculator", "name": "a b"}]}, "name"),
        ({"tools": [{"tool": "calculator", "name": "<|im_end|>"}]}, "name"),
        ({"tools": [{"tool": "a.py:f", "parameters": {"type": "string"}}]}, "must be of the type object"),
        (
            {"tools": [{"tool": "a.py:f", "parameters": {"type": "object", "$ref": "http://x"}}]},
            "is not understood",
        ),
        (
            {
                "tools": [
                    {"tool": "a.py:f", "parameters": {"type": "object", "properties": {"a": {"pattern": "(a+)+"}}}}
                ]
            },
            "is not understood",
        ),
    ],
)
def test_what_cannot_be_a_tool_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ReasoningGymTask.model_validate({"name": "products", **settings})


def test_a_worker_whose_tools_cannot_be_rendered_is_not_believed() -> None:
    """Foreign text may have taken it over: the node must not fail over what it says of a question's tools."""
    question = TaskMixture([TWO]).question(1, 0)
    tools = tools_of(question.prompt)
    assert tools is not None and not isinstance(question.prompt, str)
    (message,) = question.prompt

    def believed(changed: Tools) -> bool:
        asked = replace(question, prompt=(replace(message, tools=changed),))
        return in_order(Draw(1, 0), Drawn(asked, {}), {"products": ()})

    assert believed(tools)
    first = tools.schemas[0]
    for parameters in ("{", "[]", "7", "[" * 100_000, '{"a": "' + "x" * 2**20 + '"}'):
        assert not believed(replace(tools, schemas=(replace(first, parameters=parameters),)))
    assert not believed(replace(tools, schemas=()))
    assert not believed(replace(tools, request="x" * 2**20))


def test_schemas_by_hand() -> None:
    check_schema(SEARCH)
    assert only_text({"type": "object", "properties": {"a": {"type": "string"}}}) == "a"
    assert only_text(SEARCH) == "" and only_text({"type": "object"}) == ""
    assert problem_with({"query": "x"}, SEARCH) is None
    many = problem_with({"a" * 500: 1, "b": 1, "c": 1, "d": 1}, SEARCH)
    assert many is not None and many.count(";") == 2 and len(many) < MAX_ERROR_CHARS
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(40):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(ValueError, match="nested"):
        check_schema(deep)
    with pytest.raises(ValueError, match="characters"):
        check_schema({"type": "object", "description": "x" * 9_000})
    with pytest.raises(ValueError, match="required"):  # a list is no name, though its text may be one
        check_schema({"type": "object", "properties": {"['a']": {"type": "string"}}, "required": [["a"]]})
