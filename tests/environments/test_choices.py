"""Multiple choice: which letter is right, and which answers name it."""

from __future__ import annotations

from collections import Counter

import pytest

from swarm.environments.scoring.grading import Choices, position
from swarm.environments.sources.columns import MalformedRow
from swarm.environments.sources.dataset import DatasetTask
from swarm.environments.sources.items import ChoiceColumns

CITIES = Choices(("Rome", "Paris", "Athens"), right=1)


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        *((text, True) for text in ("B", "b", "(B)", "B.", "B)", "[B]", " B: ", r"\text{B}", r"(\text{B})")),
        *((text, True) for text in ("Paris", " paris ", "B. Paris", "(B) paris", r"\text{B. Paris}")),
        *(
            (text, False)
            for text in ("A", "C", "D", "Rome", "B. Rome", "A. Paris", "A or B", "", "BB", "Par", "B Paris")
        ),
        *((text, False) for text in ("ſ", "\u212a", "B" * 100_000)),
    ],
)
def test_the_letter_the_text_or_both_are_right(answer: str, right: bool) -> None:
    assert CITIES.are_answered_by(answer, "exact") is right


def test_a_letter_that_is_no_choice_may_be_a_text() -> None:
    letters = Choices(("X", "B", "A"), right=0)
    assert letters.are_answered_by("X", "exact"), "there is no choice X"
    assert letters.are_answered_by("A", "exact"), "read as the first choice"
    assert not letters.are_answered_by("C", "exact")


def test_texts_are_compared_under_the_rule_of_the_task() -> None:
    halves = Choices((r"\frac{1}{2}", "2"), right=0)
    assert halves.are_answered_by("0.5", "boxed") and not halves.are_answered_by("0.5", "exact")


def test_choices_are_listed_with_letters() -> None:
    assert CITIES.listed() == "A. Rome\nB. Paris\nC. Athens"


def test_an_order_depends_on_seed_and_row_alone_and_keeps_the_right_one() -> None:
    orders = [CITIES.shuffled(seed=7, row=row) for row in range(600)]
    assert orders == [CITIES.shuffled(seed=7, row=row) for row in range(600)]
    assert orders != [CITIES.shuffled(seed=8, row=row) for row in range(600)]
    assert {order.texts[order.right] for order in orders} == {"Paris"}
    counts = Counter(order.texts for order in orders)
    assert len(counts) == 6 and min(counts.values()) > 60, "each of the six orders in about a hundred rows"


def test_a_name_of_several_choices_names_none() -> None:
    assert position("B", "ABC") == 1
    assert position("paris", "ABC", CITIES.texts) == 1
    assert position("2", ("0", "1", "2"), ("5", "2", "7")) is None
    assert position("x", "ABC") is None


def read(row: dict[str, object], number: int = 0, **settings: object) -> tuple[tuple[str, ...], int]:
    task = DatasetTask(kind="dataset", name="quiz", path="x.jsonl", **settings)  # type: ignore[arg-type]
    choices = ChoiceColumns(task, list(row)).read(row, number)
    return choices.texts, choices.right


LIST: dict[str, object] = {"choices": ["Rome", "Paris", "Athens"]}
ARC: dict[str, object] = {"choices": {"text": ["Rome", "Paris", "Athens"], "label": ["1", "2", "3"]}}


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        ({**LIST, "answer": "B"}, {"choices": "choices"}),
        ({**LIST, "answer": 1}, {"choices": "choices"}),
        ({**LIST, "answer": "1"}, {"choices": "choices"}),
        ({**LIST, "answer": "Paris"}, {"choices": "choices"}),
        (
            {**ARC, "answerKey": "2"},
            {"choices": "choices.text", "choice_labels": "choices.label", "answer": "answerKey"},
        ),
        ({**LIST, "answer": "2"}, {"choices": "choices", "choice_labels": ["1", "2", "3"]}),
        ({"a": "Rome", "b": "Paris", "c": "Athens", "answer": "b"}, {"choices": ["a", "b", "c"]}),
    ],
)
def test_rows_name_the_right_choice_in_many_ways(row: dict[str, object], settings: dict[str, object]) -> None:
    assert read(row, **settings) == (CITIES.texts, 1)


def test_the_right_choice_may_have_a_column_of_its_own() -> None:
    row: dict[str, object] = {"correct": "Paris", "wrong 1": "Rome", "wrong 2": "Athens"}
    settings = {"choices": ["correct", "wrong 1", "wrong 2"], "answer": "correct"}
    seen = {read(row, number, shuffle=3, **settings) for number in range(50)}
    assert {texts[right] for texts, right in seen} == {"Paris"} and {right for _, right in seen} == {0, 1, 2}
    with pytest.raises(ValueError, match="need `shuffle`"):
        read(row, **settings)


def test_numbers_as_choices_need_a_number_to_name_them() -> None:
    row: dict[str, object] = {"choices": ["3", "0", "2"]}
    assert read({**row, "answer": 0}, choices="choices")[1] == 0
    assert read({**row, "answer": "2"}, choices="choices")[1] == 2, "the same by number and by text"
    with pytest.raises(MalformedRow, match="does not name one"):
        read({**row, "answer": "0"}, choices="choices")
    assert read({**row, "answer": "0"}, choices="choices", choice_labels=["0", "1", "2"])[1] == 0


def test_what_is_the_number_or_letter_of_no_choice_is_a_text() -> None:
    assert read({"choices": ["10", "12", "14", "16"], "answer": "12"}, choices="choices")[1] == 1
    assert read({"choices": ["X", "Y"], "answer": "Y"}, choices="choices")[1] == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**LIST, "answer": "D"}, "does not name one"),
        ({**LIST, "answer": 3}, "does not name one"),
        ({**LIST, "answer": -1}, "does not name one"),
        ({**LIST, "answer": None}, "must be text or a number"),
        ({"choices": ["Rome"], "answer": "A"}, "2 to 26 choices with text, got 1"),
        ({"choices": ["Rome"] * 27, "answer": "A"}, "2 to 26 choices with text, got 27"),
        ({"choices": ["Rome", " "], "answer": "A"}, "choices with text"),
        ({"choices": "Rome, Paris", "answer": "A"}, "must be a list"),
        ({"choices": ["Rome", "Rome", "Paris"], "answer": "Rome"}, "does not name one"),
    ],
)
def test_a_row_whose_right_choice_is_not_clear_is_malformed(row: dict[str, object], message: str) -> None:
    with pytest.raises(MalformedRow, match=message):
        read(row, choices="choices")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shuffle": 1}, "need `choices`"),
        ({"choice_labels": "x"}, "need `choices`"),
        ({"choices": "c", "answer_pattern": "x"}, "do not go with `choices`"),
        ({"choices": "c", "scorer": "own.py:f"}, "do not go with `choices`"),
        ({"choices": ["c"]}, "at least 2 items"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DatasetTask(kind="dataset", name="quiz", path="x.jsonl", **settings)  # type: ignore[arg-type]
