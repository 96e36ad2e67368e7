"""Where a row's values are found, and what they become."""

from __future__ import annotations

import pytest

from swarm.environments.sources.columns import Column, MalformedRow, Template
from swarm.types import Message

ROW: dict[str, object] = {
    "question": "Who?",
    "n": 3,
    "answers": {"text": ["Ada", "Lovelace"], "answer_start": [1, 2]},
    "turns": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    "a.b": "dotted",
    "missing": None,
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("question", "Who?"),
        ("answers.text", ["Ada", "Lovelace"]),
        ("answers.text[0]", "Ada"),
        ("answers.text[-1]", "Lovelace"),
        ("turns[1].content", "b"),
        ("turns.content", ["a", "b"]),
        ("a.b", "dotted"),
    ],
)
def test_a_path_leads_to_a_value(path: str, value: object) -> None:
    assert Column(path, list(ROW)).value(ROW) == value


@pytest.mark.parametrize("path", ["answers.txt", "answers[0]", "answers.text[2]", "answers.text[-3]", "n.real", "n[0]"])
def test_a_path_that_leads_nowhere_is_a_malformed_row_and_no_attribute(path: str) -> None:
    with pytest.raises(MalformedRow, match="there is no"):
        Column(path, list(ROW)).value(ROW)


@pytest.mark.parametrize("path", ["", "query", "question..x", "answers.text[x]", "answers.text[0", "question()", "n n"])
def test_what_is_no_path_is_named_with_the_columns(path: str) -> None:
    with pytest.raises(ValueError, match="the columns are question, n, answers"):
        Column(path, list(ROW))


@pytest.mark.parametrize(
    ("template", "texts"),
    [
        ("question", ("Who?",)),
        ("{question}", ("Who?",)),
        ("{n} x {answers.text[1]} {{y}}", ("3 x Lovelace {y}",)),
        ("answers.text", ("Ada", "Lovelace")),
        ("{answers.text}", ("Ada", "Lovelace")),
    ],
)
def test_a_template_gives_texts(template: str, texts: tuple[str, ...]) -> None:
    assert Template(template, list(ROW)).texts(ROW) == texts


@pytest.mark.parametrize("template", ["missing", "answers", "turns", "{n} {answers.text}", "{n} {missing}"])
def test_only_texts_and_numbers_become_text(template: str) -> None:
    with pytest.raises(MalformedRow, match="must be text or a number"):
        Template(template, list(ROW)).texts(ROW)


def turns(*roles: str) -> dict[str, object]:
    return {"prompt": [{"role": role, "content": f"{role} {number}"} for number, role in enumerate(roles)]}


def test_messages_are_a_conversation_and_one_of_the_user_is_a_question() -> None:
    prompt = Template("prompt", ["prompt"])
    assert prompt.prompt(turns("user")) == "user 0"
    assert prompt.prompt(turns("system", "user", "assistant", "user")) == (
        Message("system", "system 0"),
        Message("user", "user 1"),
        Message("assistant", "assistant 2"),
        Message("user", "user 3"),
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": []}, "1 to 64 messages, got 0"),
        (turns(*["user", "assistant"] * 40), "1 to 64 messages, got 80"),
        (turns("user", "assistant"), "must end with a message of the user"),
        (turns("user", "user"), "after user must come assistant, got user"),
        (turns("assistant", "user"), "after the start must come system or user, got assistant"),
        (turns("tool"), "must be system, user or assistant, got 'tool'"),
        ({"prompt": [{"role": "user", "content": None}]}, "content of text, got dict with role, content"),
        ({"prompt": ["Who?"]}, "content of text, got str"),
    ],
)
def test_what_no_template_of_a_chat_accepts_is_malformed(row: dict[str, object], message: str) -> None:
    with pytest.raises(MalformedRow, match=message):
        Template("prompt", ["prompt"]).prompt(row)
