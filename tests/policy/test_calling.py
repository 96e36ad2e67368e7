"""Calls of tools in tokens and texts: exact for every family's form, and between families."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from swarm.errors import PolicyError
from swarm.policy.calling import PROBE_NAME
from swarm.policy.loading import Policy
from swarm.policy.turns import TemplateUse
from swarm.training.rows import RowReader, sampled_row, text_rows
from swarm.types import Completion, Past, Step, Text, Tools, ToolSchema, in_words, with_tools
from swarm.types.calls import (
    MAX_CALL_CHARS,
    MAX_CALL_DEPTH,
    MAX_CALLS,
    NO_JSON,
    BadCall,
    Call,
    TaggedCall,
    calls_in,
    read_object,
    spoken,
)
from swarm.types.thoughts import answer_of
from tests.example_groups import graded
from tests.thinking_models import CALLING, FAMILIES, GEMMA2, SMOLLM2, Family, model_for, policy_of, tokenizer_of

SCHEMA = {
    "type": "object",
    "properties": {"expression": {"type": "string", "description": "Numbers."}},
    "required": ["expression"],
}
CALCULATOR = ToolSchema("calculator", "Works it out.", json.dumps(SCHEMA))
ONE = Tools((CALCULATOR,), "You may use a calculator: <tool>1 + 1</tool>.", "expression")
TWO = Tools((CALCULATOR, replace(CALCULATOR, name="look_up")), "You may call tools.")
ALL = {**FAMILIES, "mistral": CALLING["mistral"], "function gemma": CALLING["function gemma"], "json": CALLING["json"]}
ARGUMENTS: list[dict[str, Any]] = [
    {"expression": "6 * 7"},
    {"n": 3, "exact": True, "rate": 0.5, "nothing": None},
    {"words": ["a", "b, c"], "nested": {"deep": [1, {"er": "x"}]}},
    {"code": "print('hi')\nfor i in range(3):\n\tpass  # {[,:]} 12"},
    {"text": 'quotes " and \\ and é ü 中 🙂'},
    {"marks": '</tool_call [TOOL_CALLS <|im_end| call:f{a:1} {"name": "g", "arguments": {}}'},
    {},
]


@pytest.fixture(scope="module")
def policies() -> dict[str, Policy]:
    return {name: policy_of(family) for name, family in {**ALL, **CALLING}.items()}


def ids_of(policy: Policy, text: str) -> list[int]:
    """A sampled text's tokens, with special ones."""
    return list(policy.tokenizer.encode(text, add_special_tokens=False))


def shown(policy: Policy, ids: list[int]) -> str:
    return str(policy.tokenizer.decode(ids, skip_special_tokens=False))


def by_template(policy: Policy, family: Family, messages: list[dict[str, Any]], tools: Tools = ONE) -> list[int]:
    """What transformers makes of a conversation: the independent reference."""
    functions = [
        {
            "type": "function",
            "function": {
                "name": each.name,
                "description": each.description,
                "parameters": json.loads(each.parameters),
            },
        }
        for each in tools.schemas
    ]
    made = policy.tokenizer.apply_chat_template(
        messages, tools=functions, add_generation_prompt=True, return_dict=False, **family.arguments
    )
    return list(made)


def called(name: str, arguments: dict[str, Any], number: int = 0) -> dict[str, Any]:
    return {"id": f"call{number:05}", "type": "function", "function": {"name": name, "arguments": arguments}}


def native(policy: Policy, family: Family, *calls: tuple[str, dict[str, Any]]) -> str:
    """How the family's template writes a turn with calls, without the turn's end."""
    turns = [
        {"role": "user", "content": "BEGIN"},
        {"role": "assistant", "content": "", "tool_calls": [called(*each) for each in calls]},
        {"role": "user", "content": "END"},
    ]
    text = shown(policy, by_template(policy, family, turns))
    whole = text.partition("BEGIN")[2].partition("END")[0]
    bare = by_template(policy, family, [turns[0], {"role": "assistant", "content": "SAID"}, turns[2]])
    before, _, behind = shown(policy, bare).partition("BEGIN")[2].partition("END")[0].partition("SAID")
    return whole[len(before) : len(whole) - len(behind)]


@pytest.mark.parametrize("name", CALLING)
def test_questions_are_the_templates_own_tokens_with_its_tools(name: str, policies: dict[str, Policy]) -> None:
    policy = policies[name]
    for tools in (ONE, TWO):
        expected = by_template(policy, CALLING[name], [{"role": "user", "content": "6 * 7?"}], tools)
        assert policy.encode_prompt(with_tools("6 * 7?", tools)) == expected
        assert "look_up" not in shown(policy, expected) or tools is TWO
    assert "calculator" not in shown(policy, policy.encode_prompt("6 * 7?"))


@pytest.mark.parametrize("name", sorted(ALL.keys() - CALLING.keys() - {"llama3", "gemma4 off", "qwen3 off", "gemma4"}))
def test_policies_whose_template_has_no_tools_are_told_in_words(name: str, policies: dict[str, Policy]) -> None:
    policy = policies[name]
    assert policy.calling is None
    prompt = with_tools("6 * 7?", ONE)
    assert policy.encode_prompt(prompt) == policy.encode_prompt("6 * 7?\nYou may use a calculator: <tool>1 + 1</tool>.")
    assert in_words(prompt)[-1].text.startswith("6 * 7?\n")


@pytest.mark.parametrize("name", CALLING)
@pytest.mark.parametrize("ended", [True, False], ids=["ended", "cut off"])
def test_a_turn_with_a_call_is_text_with_the_common_marks_and_back(
    name: str, ended: bool, policies: dict[str, Policy]
) -> None:
    policy, family = policies[name], CALLING[name]
    thought = f"{family.open}multiply.{family.close}" if family.open or family.lead else ""
    ids = ids_of(policy, thought + native(policy, family, ("calculator", {"expression": "6 * 7"})))
    ids += [policy._conversations.end_of_calls[0]] if ended else []
    text = policy.said(ids)
    (call,) = calls_in(answer_of(text))
    assert isinstance(call, Call) and call.name == "calculator" and read_object(call.arguments) == ARGUMENTS[0]
    completion = Completion(text, "stop" if ended else "length", tuple(ids), (-0.1,) * len(ids))
    assert policy.encode_completions([completion], ONE) == [ids], "read as text it is what was sampled"
    assert not policy.hides(ids)


def test_a_hundred_and_more_calls_of_all_families_are_read_right(policies: dict[str, Policy]) -> None:
    read = 0
    for name, family in CALLING.items():
        policy = policies[name]
        for arguments in ARGUMENTS:
            for tool in ("calculator", "look_up"):
                thought = f"so{family.close}" if family.lead else ""
                ids = ids_of(policy, thought + native(policy, family, (tool, arguments)))
                (call,) = calls_in(answer_of(policy.said(ids)))
                assert isinstance(call, Call), (name, call)
                assert (call.name, read_object(call.arguments)) == (tool, arguments), name
                read += 1
    assert read == 14 * len(CALLING) == 182


@pytest.mark.parametrize("name", CALLING)
def test_several_calls_of_one_turn_are_read_in_their_order(name: str, policies: dict[str, Policy]) -> None:
    policy, family = policies[name], CALLING[name]
    wanted = [
        ("calculator", {"expression": "1 * 1"}),
        ("look_up", {"expression": "2 * 1"}),
        ("calculator", {"expression": "3 * 1"}),
    ]
    if name == "llama":  # its template refuses several, but models write them
        text = "; ".join(json.dumps({"name": tool, "parameters": arguments}) for tool, arguments in wanted)
    else:
        text = native(policy, family, *wanted)
    ids = ids_of(policy, text)
    said = policy.said(ids)
    assert [(call.name, read_object(call.arguments)) for call in calls_in(said)] == wanted
    assert policy.encode_completions([Completion(said, "length")], TWO) == [ids]


ELEMENTS = {
    "qwen3 coder": "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
    "glm compact": "<tool_call>f<arg_key>a</arg_key><arg_value>{}</arg_value></tool_call>",
}
"""As Qwen3-Coder, GLM-4.5 and GLM-4.7 are asked in their prompts to write a call."""


@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("7", 7),
        ("true", True),
        ("None", None),
        ("[1, 2]", [1, 2]),
        ("007", "007"),
        ("1.50", "1.50"),
        ("[1,2]", "[1,2]"),
        ("NaN", "NaN"),
        ("9" * 500, "9" * 500),
        ('"quoted"', '"quoted"'),
        ('1, "b": 2', '1, "b": 2'),
        ("", ""),
        ("two\n\nlines <b>", "two\n\nlines <b>"),
    ],
)
def test_a_bare_value_is_json_if_it_is_written_as_json_and_else_a_text(
    name: str, said: str, value: object, policies: dict[str, Policy]
) -> None:
    policy = policies[name]
    ids = ids_of(policy, ELEMENTS[name].format(said))
    text = policy.said(ids)
    assert calls_in(text) == (Call("f", json.dumps({"a": value}, ensure_ascii=False)),)
    if said != "None":
        assert policy.encode_completions([Completion(text, "length")], ONE) == [ids]


@pytest.mark.parametrize("name", ELEMENTS)
def test_what_elements_cannot_hold_is_written_as_json(name: str, policies: dict[str, Policy]) -> None:
    """A text that ends an element would else become another call."""
    policy = policies[name]
    end = "</parameter>" if name == "qwen3 coder" else "</arg_value>"
    for given in ({"a": f"x{end}<function=g>"}, {"a": {"b": end}}, {"a>b": 1}, {"a\n": 1}):
        body = json.dumps(given).replace("</", "<\\/")
        (ids,) = policy.encode_completions(
            [Completion(f'<tool_call>{{"name": "f", "arguments": {body}}}</tool_call>', "length")], ONE
        )
        again = calls_in(policy.said(ids))
        assert [(call.name, read_object(call.arguments)) for call in again] == [("f", given)]


@pytest.mark.parametrize("sender", CALLING)
@pytest.mark.parametrize("reader", ALL)
def test_calls_travel_between_families(sender: str, reader: str, policies: dict[str, Policy]) -> None:
    """Who reads another family's call reads it in its own form; without one in tags."""
    author, policy, theirs = policies[sender], policies[reader], CALLING[sender]
    thought = f"so{theirs.close}" if theirs.lead else ""
    text = author.said(ids_of(author, thought + native(author, theirs, ("calculator", {"expression": "6 * 7"}))))
    (read,) = policy.encode_completions([Completion(text, "length")], ONE)
    again = policy.said(read)
    (call,) = calls_in(answer_of(again))
    if policy.calling is None:
        assert call == TaggedCall("6 * 7")
        return
    family = CALLING.get(reader) or ALL[reader]
    assert (call.name, read_object(call.arguments)) == ("calculator", {"expression": "6 * 7"})
    assert shown(policy, read).endswith(native(policy, family, ("calculator", {"expression": "6 * 7"}))), (
        "as its template writes it"
    )
    assert not policy.hides(read)


@pytest.mark.parametrize("reader", CALLING)
def test_calls_in_tags_are_read_in_a_familys_own_form(reader: str, policies: dict[str, Policy]) -> None:
    policy = policies[reader]
    wanted = native(policy, CALLING[reader], ("calculator", {"expression": "6 * 7"}))
    for text, tools in (
        ("<tool>6 * 7</tool>", ONE),
        ('<tool>{"name": "calculator", "arguments": {"expression": "6 * 7"}}</tool>', TWO),
    ):
        (read,) = policy.encode_completions([Completion(text, "length")], tools)
        assert shown(policy, read).endswith(wanted)
        assert policy.encode_completions([Completion(text, "length")]) != [read], "elsewhere they are text"


@pytest.mark.parametrize("name", CALLING)
@pytest.mark.parametrize("num", [1, 2])
def test_the_next_turn_reads_what_was_sampled_and_the_templates_own_suffix(
    name: str, num: int, policies: dict[str, Policy]
) -> None:
    policy, family = policies[name], CALLING[name]
    if name == "llama" and num == 2:
        pytest.skip("its template refuses two calls of one turn")
    calls = [("calculator", {"expression": f"6 * {number}"}) for number in range(num)]
    sampled = [*ids_of(policy, native(policy, family, *calls)), policy._conversations.end_of_calls[0]]
    results = tuple(Text(f"{6 * number}", "calculator") for number in range(num))
    question = with_tools("6 * 7?", ONE)
    once = policy.encode(Past(question, (Step(tuple(sampled), results),)))
    prompt = policy.encode_prompt(question)
    assert once[: len(prompt) + len(sampled)] == [*prompt, *sampled]
    turns = [{"role": "user", "content": "6 * 7?"}]
    turns += [{"role": "assistant", "content": "", "tool_calls": [called(*e, n) for n, e in enumerate(calls)]}]
    if name.startswith("gemma"):
        turns[1]["tool_responses"] = [{"name": "calculator", "response": part.text} for part in results]
    else:
        turns += [
            {"role": "tool", "name": "calculator", "tool_call_id": f"call{n:05}", "content": part.text}
            for n, part in enumerate(results)
        ]
    expected = by_template(policy, family, turns)
    after = once[len(prompt) + len(sampled) :]
    assert after == expected[len(expected) - len(after) :] and len(after) > 2
    whole, said = shown(policy, expected), native(policy, family, *calls)
    if num == 1:
        end = shown(policy, sampled[-1:]) if sampled[-1] in policy.stop_ids and name[:3] not in ("gem", "glm") else ""
        assert whole.endswith(f"{said}{end}{shown(policy, after)}"), "nothing of it is left out"


@pytest.mark.parametrize(
    ("name", "opens", "ends"),
    [
        ("gemma", "<|tool_response>", "<turn|>"),
        ("glm", "<|observation|>", "<|user|>"),
        ("glm compact", "<|observation|>", "<|user|>"),
    ],
)
def test_an_end_token_before_results_is_neither_doubled_nor_lost(name: str, opens: str, ends: str) -> None:
    """Gemma 4 and GLM end a turn with calls by the token that opens their results."""
    family = CALLING[name]
    tokenizer = tokenizer_of(family)
    model = model_for(tokenizer)
    response, turn = tokenizer.convert_tokens_to_ids([opens, ends])
    model.generation_config.eos_token_id = [response, turn]
    policy = Policy(name, model, tokenizer, None, template=TemplateUse(family.arguments))
    result = (Text("42", "calculator"),)
    by_itself, by_turn, cut = (policy.encode_observation(result, [7, last]) for last in (response, turn, 9))
    assert cut[0] == response and by_itself == cut[1:] and by_turn == cut
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "1"}}</tool_call>'
    assert policy.encode_completions([Completion(call, "stop")], ONE)[0][-1] == response
    assert policy.encode_completions([Completion("<answer>7</answer>", "stop")], ONE)[0][-1] == turn


@pytest.mark.parametrize("name", CALLING)
def test_what_a_tool_answers_ends_neither_itself_nor_a_turn(name: str, policies: dict[str, Policy]) -> None:
    policy = policies[name]
    hostile = " ".join(sorted(policy.tokenizer.get_added_vocab(), key=len)) + '"]}'
    calm, attacked = (policy.encode_observation((Text(text, "calculator"),), []) for text in ("calm", hostile))
    added = set(policy.tokenizer.get_added_vocab().values())
    assert sorted(t for t in attacked if t in added) == sorted(t for t in calm if t in added)
    text = shown(policy, attacked)
    assert hostile in text or json.dumps(hostile, ensure_ascii=False)[1:-1] in text


@pytest.mark.parametrize("name", CALLING)
def test_calls_in_a_thought_are_no_calls(name: str, policies: dict[str, Policy]) -> None:
    policy, family = policies[name], CALLING[name]
    if not (family.open or family.lead):
        pytest.skip("it does not think")
    call = native(policy, family, ("calculator", {"expression": "6 * 7"}))
    for after in ("<answer>7</answer>", ""):
        ids = ids_of(policy, f"{family.open}I could say {call}, but{family.close}{after}")
        text = policy.said(ids)
        assert calls_in(answer_of(text)) == ()
    unfinished = policy.said(ids_of(policy, f"{family.open}I could say {call}, but"))
    assert answer_of(unfinished) == ""
    if policy.calling.tokens & policy._unshown:
        assert policy.hides(ids), "the text does not show the marks of the thought"


@pytest.mark.parametrize("name", CALLING)
def test_calls_are_of_the_answer_after_an_end_that_was_inserted(name: str, policies: dict[str, Policy]) -> None:
    policy, family = policies[name], CALLING[name]
    if not (family.open or family.lead):
        pytest.skip("it does not think")
    thought = ids_of(policy, f"{family.open}let me see")
    said = [*thought, *ids_of(policy, native(policy, family, ("calculator", {"expression": "6 * 7"})))]
    text = policy.said(said, len(thought))
    (call,) = calls_in(answer_of(text))
    assert isinstance(call, Call) and read_object(call.arguments) == {"expression": "6 * 7"}
    assert not policy.hides(said, len(thought))
    completion = Completion(text, "length", tuple(said), (-0.5,) * len(said), forced=len(thought))
    group = graded()
    group = replace(
        group,
        group=replace(group.group, completions=(completion,)),
        rewards=(1.0,),
        prompt=with_tools("q", ONE),
    )
    prompt = policy.encode_prompt(group.prompt)
    (read,) = text_rows(policy, prompt, group, [0])
    row = sampled_row(policy, prompt, group, 0)
    assert (tuple(read.completion), read.inserts) == (tuple(said), row.inserts)


HOSTILE = {
    "without an end": '<tool_call>{"name": "calculator", "arguments": {"expression": "1"}}',
    "half": '<tool_call>{"name": "calcul',
    "nothing": "<tool_call></tool_call>",
    "no JSON": "<tool_call>calculator(1)</tool_call>",
    "a list": '<tool_call>["calculator"]</tool_call>',
    "no name": '<tool_call>{"arguments": {}}</tool_call>',
    "a number as name": '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
    "a long name": '<tool_call>{"name": "' + "n" * 65 + '", "arguments": {}}</tool_call>',
    "arguments as text": '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
    "both names of arguments": '<tool_call>{"name": "f", "arguments": {}, "parameters": {}}</tool_call>',
    "duplicate names": '<tool_call>{"name": "f", "name": "g", "arguments": {}}</tool_call>',
    "duplicates within": '<tool_call>{"name": "f", "arguments": {"a": {"b": 1, "b": 2}}}</tool_call>',
    "an escaped duplicate": '<tool_call>{"name": "f", "arguments": {"a": 1, "\\u0061": 2}}</tool_call>',
    "too large": '<tool_call>{"name": "f", "arguments": {"a": "' + "x" * MAX_CALL_CHARS + '"}}</tool_call>',
    "too deep": '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 60 + "]" * 60 + "}}</tool_call>",
    "open brackets": "<tool_call>" + "[" * 8_000 + "</tool_call>",
    "not a number": '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
    "infinity": '<tool_call>{"name": "f", "arguments": {"a": -Infinity}}</tool_call>',
    "a float beyond all": '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>',
    "an integer of thousands of digits": '<tool_call>{"name": "f", "arguments": {"a": '
    + "1" * 5_000
    + "}}</tool_call>",
    "half of a character": '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>',
    "two in one": '<tool_call>{"name": "f", "arguments": {}}{"name": "f", "arguments": {}}</tool_call>',
    "a trailing comma": '<tool_call>{"name": "f", "arguments": {},}</tool_call>',
    "single quotes": "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>",
    "a call in a call": "<tool_call><tool_call>{}</tool_call></tool_call>",
    "escapes": '<tool_call>{"name": "f", "arguments": {"a": "' + "\\" * 4_001 + '"}}</tool_call>',
    "quotes": "<tool_call>" + '"' * 8_001 + "</tool_call>",
    "bare and unfinished": '{"name": "f", "arguments": {"a": 1}',
    "bare and too large": '{"name": "f", "arguments": {"a": "' + "x" * 70_000 + '"}}',
    "bare and deep": '[{"name": "f", "arguments": ' + '{"a":' * 40 + "1" + "}" * 40 + "}]",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_call_that_is_none_is_read_as_one_in_no_time(name: str, policies: dict[str, Policy]) -> None:
    """Neither an answer nor a call, an error nor a delay; and every family can read it again."""
    text = HOSTILE[name]
    began = time.thread_time()
    found = calls_in(text)
    assert found and isinstance(found[0], BadCall) and 0 < len(found[0].problem) <= 300
    for policy in policies.values():
        (ids,) = policy.encode_completions([Completion(text, "stop")], ONE)
        policy.said(ids)
    assert time.thread_time() - began < 5


@pytest.mark.parametrize("count", [MAX_CALLS, MAX_CALLS + 1, 4_000])
@pytest.mark.parametrize("form", ["marked", "bare"])
def test_more_calls_than_a_turn_may_have_are_one_bad_call(count: int, form: str) -> None:
    body = '{"name": "f", "arguments": {}}'
    text = f"<tool_call>{body}</tool_call>" * count if form == "marked" else "\n".join([body] * count)
    began = time.thread_time()
    found = calls_in(text)
    assert time.thread_time() - began < 1
    if count <= MAX_CALLS:
        assert found == (Call("f", "{}"),) * count
    else:
        assert len(found) == 1 and isinstance(found[0], BadCall)


def test_json_up_to_the_bounds_is_read() -> None:
    depth = MAX_CALL_DEPTH - 2
    deep = '{"name": "f", "arguments": {"a": ' + "[" * depth + "]" * depth + "}}"
    assert isinstance(calls_in(f"<tool_call>{deep}</tool_call>")[0], Call)
    assert isinstance(
        calls_in(f"<tool_call>{deep.replace('[', '[[', 1).replace(']', ']]', 1)}</tool_call>")[0], BadCall
    )
    long = '{"name": "f", "arguments": {"a": "' + "[" * (MAX_CALL_CHARS - 37) + '"}}'
    assert len(long) == MAX_CALL_CHARS and isinstance(calls_in(f"<tool_call>{long}</tool_call>")[0], Call)


NATIVE_HOSTILE = {
    "mistral": [
        "[TOOL_CALLS]",
        "[TOOL_CALLS] [{",
        "[TOOL_CALLS]7",
        "[TOOL_CALLS]" * 50,
        "[TOOL_CALLS] []",
        "x[ARGS]{}",
    ],
    "magistral": [
        "[TOOL_CALLS]f[ARGS]{",
        "[TOOL_CALLS]f[ARGS]",
        "[TOOL_CALLS][ARGS]{}",
        "[TOOL_CALLS]f[CALL_ID]1[ARGS]{}",
    ],
    "gemma": [
        "<|tool_call>",
        "<|tool_call>call:f{",
        "<|tool_call>call:f{a:<tool_call|>",
        '<|tool_call>call:f{a:<|"|>x}<tool_call|>',
        "<|tool_call>call:f{a:" + "{b:" * 40 + "1" + "}" * 40 + "}<tool_call|>",
        "<|tool_call>call:f{a:" + "[" * 3_000 + "}<tool_call|>",
        "<|tool_call>call:f{a:1,a:2}<tool_call|>",
        "<|tool_call>call:f{a:eval(1)}<tool_call|>",
        "<|tool_call>f(1)<tool_call|>",
        "<|tool_call>call:f{}<tool_call|>" * 50,
    ],
    "qwen3 coder": [
        "<tool_call>",
        "<tool_call><function=f>",
        "<tool_call><function=f></tool_call>",
        "<tool_call><function=f>7</function></tool_call>",
        "<tool_call><function=f><parameter=a>1</function></tool_call>",
        "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>",
        "<tool_call><function=f>" + "<parameter=a>" * 600 + "</function></tool_call>",
        "<tool_call><function=f></function></tool_call>" * 50,
    ],
    "glm": [
        "<tool_call>",
        "<tool_call>f<arg_key>",
        "<tool_call>f<arg_key>a</arg_key></tool_call>",
        "<tool_call>f<arg_key>a</arg_key><arg_value>1</tool_call>",
        "<tool_call>f(1)</tool_call>",
        "<tool_call>f<arg_key>a</arg_key><arg_value>"
        + "[" * 3_000
        + "</arg_value></tool_call>x<tool_call></tool_call>",
        "<tool_call>f " + "<arg_key>a" * 700 + "</tool_call>",
    ],
    "llama": [
        "<|python_tag|>",
        "<|python_tag|>print(1)",
        '<|python_tag|>{"name": "f", "parameters": {',
        "<|python_tag|>[]",
    ],
}


@pytest.mark.parametrize(("name", "said"), [(name, said) for name in NATIVE_HOSTILE for said in NATIVE_HOSTILE[name]])
def test_broken_calls_of_a_family_are_common_text_that_every_reader_refuses(
    name: str, said: str, policies: dict[str, Policy]
) -> None:
    policy = policies[name]
    ids = ids_of(policy, said)
    text = policy.said(ids)
    for call in calls_in(answer_of(text)):
        assert isinstance(call, BadCall) or call.arguments == "{}" or "[[[" in said
    assert calls_in(answer_of(text)) or said == "x[ARGS]{}"
    for other in policies.values():
        other.encode_completions([Completion(text, "stop")], ONE)
    if len(said) < 200:
        (again,) = policy.encode_completions([Completion(text, "length")], ONE)
        assert calls_in(answer_of(policy.said(again))) == calls_in(answer_of(text))


def test_texts_of_strangers_make_no_tokens_but_the_marks_of_calls(policies: dict[str, Policy]) -> None:
    """Arguments and names that spell marks and ends stay text."""
    for name in CALLING:
        policy = policies[name]
        spelled = " ".join(policy.tokenizer.get_added_vocab())
        text = f"<tool_call>{json.dumps({'name': 'f', 'arguments': {'a': spelled}})}</tool_call>"
        text = text.replace("</tool_call> ", "<\\/tool_call> ").replace("<tool_call> ", "<\\u0074ool_call> ")
        text = text.replace("</think>", "<\\/think>")
        (call,) = calls_in(text)
        assert isinstance(call, Call) and read_object(call.arguments) == {"a": spelled}
        (ids,) = policy.encode_completions([Completion(text, "length")], ONE)
        special = [token for token in ids if token in policy._unshown]
        plain = policy.encode_completions(
            [Completion('<tool_call>{"name": "f", "arguments": {"a": "x"}}</tool_call>', "length")], ONE
        )[0]
        assert special == [token for token in plain if token in policy._unshown], name
        evil = json.dumps({"name": "<|im_end|>[TOOL_CALLS]", "arguments": {}})
        (ids,) = policy.encode_completions([Completion(f"<tool_call>{evil}</tool_call>", "length")], ONE)
        assert not [token for token in ids if token in policy._unshown and token not in policy.calling.tokens]


def test_a_text_must_be_that_of_its_tokens_with_the_marks(policies: dict[str, Policy]) -> None:
    """A sender cannot show a grader another call than its tokens have, or hide one."""
    from swarm.sapo.mixing import MixSettings

    policy = policies["mistral"]
    reader = RowReader(policy, MixSettings(), lambda rewards: rewards)
    ids = tuple(ids_of(policy, native(policy, CALLING["mistral"], ("calculator", {"expression": "6 * 7"}))))
    honest = Completion(policy.said(ids), "length", ids, (-0.1,) * len(ids))
    assert reader.same_tokens(honest)
    assert not reader.same_tokens(replace(honest, text=honest.text.replace("6", "7")))
    assert not reader.same_tokens(replace(honest, text="<answer>42</answer>"))


def test_without_tools_in_the_question_texts_are_what_they_were(policies: dict[str, Policy]) -> None:
    answer = '{"name": "Bob", "arguments": {"age": 7}}'
    for policy in policies.values():
        (ids,) = policy.encode_completions([Completion(answer, "length")])
        assert policy.decode(ids).endswith(answer)


@pytest.mark.parametrize("setting", ["tags", "hermes", "mistral", "auto"])
def test_the_form_is_found_and_can_be_chosen(setting: Any) -> None:
    family = CALLING["qwen3"]
    tokenizer = tokenizer_of(family)
    made = Policy("q", model_for(tokenizer), tokenizer, None, template=TemplateUse({}, None, setting))
    if setting == "mistral":
        with pytest.raises(PolicyError, match="policy.tool_calls is mistral, but the model's chat template does not"):
            made.check_template()
        return
    made.check_template()
    assert (made.calling.form.name if made.calling else "tags") == ("hermes" if setting == "auto" else setting)
    assert (PROBE_NAME in str(made.calling)) is False


UNUSUAL = {
    "no tools": SMOLLM2,
    "no system role": GEMMA2,
    "tools that are never shown": SMOLLM2 + "{#- tools tool_calls #}",
    "calls in another form": CALLING["json"].template.replace(
        "{{- call.function | tojson }}", "{{- call.function.name + '(' + call.function.arguments | string + ')' }}"
    ),
    "calls that are refused": CALLING["json"].template.replace(
        "{%- for call in", "{%- if m.tool_calls %}{{- raise_exception('no') }}{%- endif %}{%- for call in"
    ),
    "an endless loop over tools": "{%- for a in tools or [] %}{%- for b in range(10**5) %}{%- for c in range(10**5) %}"
    "{%- endfor %}{%- endfor %}{%- endfor %}" + SMOLLM2 + "{#- tool_calls #}",
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_a_template_that_does_not_render_calls_in_a_known_form_leaves_the_tags(name: str) -> None:
    policy = policy_of(Family(UNUSUAL[name], "<|im_end|>"))
    policy.check_template()
    assert policy.calling is None
    assert "<tool>1 + 1</tool>" in shown(policy, policy.encode_prompt(with_tools("6 * 7?", ONE)))


def pairs() -> Iterator[tuple[str, list[object]]]:
    yield "7", ["7"]
    yield "", [""]
    yield '{"answer": 7}', ['{"answer": 7}']
    yield "so <tool>1</tool>", ["so ", TaggedCall("1")]
    yield 'a<tool_call>{"name":"f"}</tool_call>b', ["a", Call("f", "{}"), "b"]
    yield '```json\n{"name": "f", "parameters": {"a": 1}}\n```', [Call("f", '{"a": 1}')]
    yield '[{"name": "f", "arguments": {}, "id": "1"}]', [Call("f", "{}")]
    yield '{"type": "function", "function": {"name": "f", "arguments": {}}}', [Call("f", "{}")]
    said = '{"name": "f", "arguments": {}} is what I say'
    yield said, [BadCall(NO_JSON, said)]


@pytest.mark.parametrize(("text", "parts"), list(pairs()))
def test_parts_of_texts_by_hand(text: str, parts: list[object]) -> None:
    assert spoken(text) == parts
