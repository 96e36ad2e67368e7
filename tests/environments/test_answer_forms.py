"""Answers that restate a question, are not carried out or offer several values; right ones in their ordinary forms."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from msgspec import Struct

from swarm.environments.answering import READING_VERSION, MatchRule
from swarm.environments.scoring.finding import by_match_rule
from swarm.environments.scoring.forms import MAX_CHARS, Asked
from swarm.environments.scoring.grading import matches, numeric
from swarm.environments.scoring.mathematics import equivalent, is_answer, is_stated
from swarm.environments.scoring.notation import normalise
from swarm.environments.scoring.shapes import shape_of
from swarm.environments.scoring.written import all_written, last_written, read_number
from swarm.environments.sources.dataset import DatasetTask
from swarm.environments.sources.hf_datasets import DatasetSource
from swarm.errors import Refusal
from tests.environments import test_grading


class Row(Struct):
    kind: str
    match: MatchRule
    question: str
    reference: str
    completion: str
    reward: int

    def graded(self) -> float:
        answer = by_match_rule(self.match, self.completion)
        return float(answer is not None and matches(self.match, answer, self.reference, self.question))


ROWS = [
    Row(**json.loads(line))
    for line in (Path(__file__).parent / "answers.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize("reward", [0, 1])
def test_every_answer_of_the_table_has_its_reward(reward: int) -> None:
    assert [row for row in ROWS if row.reward == reward and row.graded() != reward] == []


def test_the_table_is_large_and_has_every_kind_both_right_and_wrong() -> None:
    wrong, right = ({(row.kind) for row in ROWS if row.reward == reward} for reward in (0, 1))
    assert wrong == right and len(wrong) >= 10
    assert sum(row.reward == 0 for row in ROWS) >= 400 and sum(row.reward for row in ROWS) >= 300


def test_an_answer_takes_little_time() -> None:
    seconds = []
    for row in ROWS:
        began = time.thread_time()
        row.graded()
        seconds.append(time.thread_time() - began)
    assert statistics.median(seconds) < 0.02


REPORTED = [
    ("boxed", r"What is $37 \cdot 48$?", "1776", r"37 \cdot 48"),
    ("boxed", r"What is $\log_2(4^2)$?", "4", r"\log_2(4^2)"),
    ("boxed", "Expand (x+1)(x+2)", "x^2+3x+2", "(x+1)(x+2)"),
    ("boxed", "Factor x^2-9", "(x-3)(x+3)", "x^2-9"),
    ("boxed", r"Simplify $\frac{12}{18}$", r"\frac{2}{3}", r"\frac{12}{18}"),
    ("boxed", "Compute 5!", "120", "5!"),
    ("boxed", r"Compute $\binom{6}{2}$", "15", r"\binom{6}{2}"),
    ("boxed", r"Compute $2^{10}$", "1024", "2^{10}"),
    ("boxed", r"Simplify $\sqrt{12}$", r"2\sqrt{3}", r"\sqrt{12}"),
    ("boxed", "How many?", "1776", r"\sqrt{1776^2}"),
    ("boxed", "Multiply x+1 by x+2.", "x^2+3x+2", "(x+1)(x+2)"),
    ("boxed", "Factor x^2+3x+2.", "(x+1)(x+2)", "x^2+3x+2"),
    ("numeric", "How many eggs?", "12", "1200%"),
]


@pytest.mark.parametrize(("rule", "question", "reference", "answer"), REPORTED)
def test_what_was_reported_is_worth_nothing_and_the_reference_is(
    rule: MatchRule, question: str, reference: str, answer: str
) -> None:
    assert not matches(rule, answer, reference, question)
    assert matches(rule, reference, reference, question)


def test_a_data_set_s_question_reaches_the_rule(tmp_path: Path) -> None:
    rows = [{"question": rf"Simplify $\frac{{{2 * n}}}{{{3 * n}}}$.", "answer": r"\frac{2}{3}"} for n in range(2, 30)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = DatasetTask(kind="dataset", name="sums", path=str(tmp_path / "rows.jsonl"), match="boxed")
    source = DatasetSource(task)
    for index in range(5):
        question = source.question(1, index)
        n = question.ref.row + 2  # type: ignore[union-attr]
        assert source.score(question.ref, rf"\boxed{{\frac{{{2 * n}}}{{{3 * n}}}}}") == 0.0
        assert source.score(question.ref, r"\boxed{2/3}") == 1.0


def test_who_reads_answers_in_another_way_refuses_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join([json.dumps({"question": "1 + 1?", "answer": "2"})] * 3))
    tasks = {
        rule: DatasetTask(kind="dataset", name="sums", path=str(tmp_path / "rows.jsonl"), match=rule, find=find)
        for rule, find in (("exact", None), ("numeric", None), ("boxed", None))
    }
    last = DatasetTask(kind="dataset", name="sums", path=str(tmp_path / "rows.jsonl"), find="last_number")
    of_earlier = {}
    with monkeypatch.context() as earlier:
        earlier.setattr("swarm.environments.answering.READING_VERSION", READING_VERSION - 1)
        of_earlier = {rule: DatasetSource(task).question(1, 1).ref for rule, task in {**tasks, "last": last}.items()}
    for rule, task in ({**tasks, "last": last}).items():
        with pytest.raises(Refusal, match="options_differ"):
            DatasetSource(task).recall(of_earlier[rule])


def test_choices_are_answered_by_their_text_and_not_by_the_question(tmp_path: Path) -> None:
    row = {"question": "Simplify $\\sqrt{12}$.", "choices": ["$2\\sqrt{3}$", "$3\\sqrt{2}$"], "answer": "A"}
    (tmp_path / "rows.jsonl").write_text("\n".join([json.dumps(row)] * 3))
    path = str(tmp_path / "rows.jsonl")
    source = DatasetSource(DatasetTask(kind="dataset", name="roots", path=path, choices="choices", match="boxed"))
    ref = source.question(1, 1).ref
    answers = {"A": 1.0, r"2\sqrt3": 1.0, r"\sqrt{3}\cdot2": 1.0, r"\sqrt{12}": 0.0, "B": 0.0}
    assert {answer: source.score(ref, rf"\boxed{{{answer}}}") for answer in answers} == answers


UNFINISHED = {
    r"\sqrt[3]{27}", "5!", r"\binom{5}{2}", r"\log_2 8", r"\sqrt[3]{-8}", "(x-1)(x+2)", r"e^{i\pi}", "(1+i)^2",
    r"\sin^2 x + \cos^2 x", r"\begin{bmatrix}1&2\\3&\frac{8}{2}\end{bmatrix}",
}  # fmt: skip
"""Equal in value to what `test_grading.py` has as the other side, and no answer to it."""


def test_of_what_is_equal_in_value_only_what_is_unfinished_is_no_answer() -> None:
    tables = (
        test_grading.test_boxed,
        test_grading.test_expressions_with_letters,
        test_grading.test_answers_of_several_parts,
    )
    refused = set()
    for table in tables:
        for one, other, equal in table.pytestmark[0].args[1]:  # type: ignore[attr-defined]
            for answer, reference in ((one, other), (other, one)):
                assert equivalent(answer, reference) is equal
                assert equal or not is_answer(answer, reference)
                refused |= {answer} if equal and not is_answer(answer, reference) else set()
    assert refused == UNFINISHED


@given(st.integers(2, 999), st.integers(2, 999), st.sampled_from(["*", r"\cdot", r"\times", "+", "-", "/"]))
@settings(max_examples=100)
def test_a_calculation_is_answered_by_its_result_alone(one: int, other: int, sign: str) -> None:
    results = {"+": one + other, "-": one - other, "/": one / other}
    result = results.get(sign, one * other)
    reference = str(int(result)) if result == int(result) else repr(result)
    asked = f"What is ${one} {sign} {other}$?"
    assert matches("boxed", reference, reference, asked)
    for answer in (f"{one} {sign} {other}", f"({one}) {sign} ({other})", f"{one} {sign} {other} + 0"):
        assert not matches("boxed", answer, reference, asked)
        assert not matches("numeric", rf"\boxed{{{answer}}}", reference, asked)


@given(st.text(st.sampled_from("0123456789.,-+/%$e^(){}[]\\ fracsqtboxed=×π\n|!_"), max_size=120), st.text(max_size=60))
@settings(max_examples=200)
def test_no_text_and_no_question_is_an_error(text: str, question: str) -> None:
    for asked in (question, text, f"{text} {question}"):
        for rule in ("numeric", "boxed"):
            matches(rule, text, r"\frac{2}{3}", asked)  # type: ignore[arg-type]
            matches(rule, "0.5", r"\frac{1}{2}", asked)  # type: ignore[arg-type]
    assert read_number(text) is None or last_written(text) is not None or "\\overline" in text
    shape_of(normalise(text))


@pytest.mark.parametrize(
    "piece",
    [
        "$",
        "$a$",
        "\\(",
        "\\[",
        "\\(a\\)",
        "1,",
        "x+",
        "\\text{",
        "a b ",
        "\\frac{",
        "(",
        "1 1/",
        "=",
        "5!",
        "%",
        "  ",
        "9" * 40,
    ]
    + ["\\boxed{1} ", "\\boxed{1}" + " " * 50, "1.\\overline{", "or 1 ", "1 or "],
)
def test_no_question_and_no_answer_takes_long(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    began = time.thread_time()
    asked = Asked(text)
    is_stated(r"\sqrt{2}", asked)
    asked.has_value(1), asked.is_in_percent
    for rule in ("numeric", "boxed"):
        matches(rule, text[:60_000], "12", text)  # type: ignore[arg-type]
        matches(rule, rf"\boxed{{{text[:1_500]}}}", r"2\sqrt{3}", text[:MAX_CHARS])  # type: ignore[arg-type]
    assert time.thread_time() - began < 2.0


def test_a_long_question_is_read_at_its_ends() -> None:
    text = f"Simplify $\\sqrt{{12}}$. {'word ' * 10_000} Then $\\sqrt{{50}}$."
    assert {r"\sqrt{12}", r"\sqrt{50}"} <= set(Asked(text).expressions)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"Expand $(x+1)(x+2)$.", "(x+1)(x+2)"),
        ("Expand (x+1)(x+2).", "(x+1)(x+2)"),
        (r"Let \(f(x)=\dfrac{x^2-1}{x-1}\).", r"\frac{x^2-1}{x-1}"),
        ("Compute 5!", "5!"),
        (r"Simplify \[ \sqrt{12} \]", r"\sqrt{12}"),
        (r"Use logarithms to expand $\ln(xy)$.", r"\ln(xy)"),
        ("What is 12 / 18 in lowest terms?", "12/18"),
        ("Factor ab + ac", "ab+ac"),
        ("It cost $5. Expand (x+1)(x+2). It was $6.", "(x+1)(x+2)"),
        (r"Find $3x+5$, where $2x-1=7$", "2x-1"),
    ],
)
def test_the_expressions_of_a_question(text: str, found: str) -> None:
    assert found in Asked(text).expressions


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("1,234.50", "decimal", 1234.5),
        ("42.0", "whole", 42),
        ("-3/4", "fraction", -0.75),
        (r"\frac{3}{4}", "fraction", 0.75),
        (r"2\frac{1}{2}", "mixed", 2.5),
        ("2 1/2", "mixed", 2.5),
        ("5½", "mixed", 5.5),
        ("3e5", "scientific", 300_000),
        (r"3\times10^{-2}", "scientific", 0.03),
        ("10^6", "scientific", 1_000_000),
        ("2^{10}", "power", 1024),
        (r"0.1\overline{6}", "decimal", 1 / 6),
        ("(5)", "whole", 5),
        ("(6)/(4)", "fraction", 1.5),
        (r"-(\frac{1}{2})", "fraction", -0.5),
        (r"{\frac{1}{2}}", "fraction", 0.5),
    ],
)
def test_a_number_is_read_with_its_form(text: str, kind: str, value: float) -> None:
    number = read_number(text)
    assert number is not None and number.kind == kind and number.value == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1+1",
        "5!",
        r"\sqrt{4}",
        "1 2",
        "1/2/3",
        "(1)(2)",
        "10^{2}(3)",
        "--5",
        "-(-5)",
        "-()",
        "5x",
        "1e99999",
        "9^9^9",
    ],
)
def test_nothing_else_is_a_number(text: str) -> None:
    assert read_number(text) is None


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("The house is worth $250,000, which is more.", [250_000]),
        ("In total 1,072, I believe.", [1072]),
        ("9.8 m/s^2", [9.8]),
        (r"7\text{ cm}^{3}", [7]),
        ("Answer:\n- 42", [42]),
        ("__-12__", [-12]),
        (r"\frac12", [0.5]),
    ],
)
def test_numbers_in_a_text(text: str, values: list[float]) -> None:
    assert [number.value for number in all_written(text)] == values


@pytest.mark.parametrize(
    ("answer", "reference", "equal"),
    [
        ("-2000001", "-2000000", False),
        ("2000001", r"2\cdot 10^6", False),
        ("5, 120", "120, 5", True),
        ("5120", "5, 120", False),
        (r"11,\! 111", "11111", True),
        (r"(2, 12) \cup (12, 102)", r"(2,12)\cup(12,102)", True),
        ("19, 46, and 82", "19, 46, 82", True),
        ("12_{8}", "12_8", True),
        (r"x \neq 3", r"x \ne 3", True),
        ("1e6", "6e", False),
        ("sqrt(2)", r"\sqrt{2}", True),
    ],
)
def test_more_of_the_same_value(answer: str, reference: str, equal: bool) -> None:
    assert equivalent(answer, reference) is equal


def test_a_percentage_is_a_share_only_of_what_can_be_one() -> None:
    assert numeric("120%", "1.2") and numeric("50%", "0.5") and not numeric("1200%", "12") and not numeric("200%", "2")
