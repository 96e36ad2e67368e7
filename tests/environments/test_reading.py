"""Answers with known truth, as the benchmark of grading measures them, and what every kind of reading accepts."""

from __future__ import annotations

import statistics
import time

import pytest

from benchmarks.grading.pairs import SETS, Pair, graded
from swarm.environments.scoring.grading import matches
from swarm.environments.scoring.mathematics import equivalent, region_of
from swarm.environments.scoring.notation import MAX_CHARS, decimal_points, notation, plain_characters, plain_digits
from swarm.environments.scoring.statements import answer_in

MOST_OTHERWISE = 9
"""Pairs of Math-Verify's 194: work left to do, rounding to two places, and its conventions
(benchmarks/results/learning.md)."""


def otherwise(pairs: tuple[Pair, ...]) -> list[Pair]:
    return [pair for pair in pairs if graded(pair) != pair.right]


@pytest.mark.parametrize("name", ["cases", "own", "adversarial"])
def test_every_pair_is_graded_as_a_careful_human_does(name: str) -> None:
    assert otherwise(SETS[name]) == []


def test_of_the_pairs_of_math_verify_few_are_graded_otherwise() -> None:
    pairs = SETS["math_verify"]
    found = otherwise(pairs)
    assert len(pairs) == 194 and len(found) <= MOST_OTHERWISE
    assert sum(not pair.right for pair in found) <= 1, "that an interval is an inequality, which depends on its order"


def test_the_sets_are_large_and_nothing_adversarial_is_right() -> None:
    assert len(SETS["own"]) >= 300 and len(SETS["adversarial"]) >= 500
    assert not any(pair.right for pair in SETS["adversarial"])
    assert {pair.right for pair in SETS["own"]} == {True, False}


def test_an_answer_takes_little_time() -> None:
    seconds = []
    for pairs in SETS.values():
        for pair in pairs:
            began = time.thread_time()
            graded(pair)
            seconds.append(time.thread_time() - began)
    assert statistics.median(seconds) < 0.02


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("Cafe\u0301", "Café"),
        ("5½", "5 1/2"),
        ("10⁻⁶ x₁", "10^{-6} x_{1}"),
        ("−5 – 3", "-5 - 3"),
        ("１，０００", "1,000"),
        ("a\u200bb\ue000c", "abc"),
        ("٣", "٣"),
    ],
)
def test_characters_that_look_the_same(text: str, plain: str) -> None:
    assert plain_characters(text) == plain


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("1,234,567", "1234567"),
        ("1{,}234", "1234"),
        (r"1\,234", "1234"),
        (r"11,\! 111", "11111"),
        ("1 234 567", "1234567"),
        ("1'234", "1234"),
        ("1_234", "1234"),
        ("1.234.567", "1234567"),
        ("12,34,567", "1234567"),
        ("1, 234", "1, 234"),
        ("1,2345", "1,2345"),
        ("0,123", "0,123"),
        ("1234,567", "1234,567"),
        ("5 12", "5 12"),
        ("1.234", "1.234"),
    ],
)
def test_separators_of_thousands(text: str, digits: str) -> None:
    assert plain_digits(text) == digits


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("2,74", "2.74"),
        ("0,111", "0.111"),
        ("10,000", "10,000"),
        ("1,2,3", "1,2,3"),
        ("(3,5)", "(3,5)"),
        ("3, 5", "3, 5"),
    ],
)
def test_a_decimal_comma(text: str, point: str) -> None:
    assert decimal_points(text) == point


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("5", "5"),
        (r"so \boxed{5}", "5"),
        ("The answer is $5$. I hope it is correct.", "$5$"),
        ("The final answer is 12,000,023. I checked 3 times.", "12,000,023"),
        (r"Thus $x \geq 5$ is the solution.", r"$x \geq 5$"),
        ("We get $n$ as the sum of 3 terms.", "3"),
        ("The roots are $1$ and $2$.", "$1$ and $2$"),
        ("It costs $5 and the other one $6 so that both are $11.", "$11"),
        (r"\boxed{255}. In total it is more. The final answer is $300$.", "$300$"),
        (r"\text{all real numbers except } 3", r"\text{all real numbers except } 3"),
        ("The answer is not 5.", "The answer is not 5."),
    ],
)
def test_what_prose_states(text: str, answer: str) -> None:
    assert answer_in(text) == answer


@pytest.mark.parametrize(
    ("relation", "region"),
    [
        ("3<x<=5", "(3,5]"),
        ("5>=x>3", "(3,5]"),
        ("x>3", r"(3,\infty)"),
        ("3>=x", r"(-\infty,3]"),
        ("x≠3", r"(-\infty,3)\cup(3,\infty)"),
        ("x<1,x>5", r"(-\infty,1)\cup(5,\infty)"),
        ("x>1,x<5", "(1,5)"),
        (r"\{x|1<x<5\}", "(1,5)"),
        ("x+y>3", None),
        ("1<x>3", None),
        ("x<y", None),
        ("5", None),
    ],
)
def test_relations_as_regions(relation: str, region: str | None) -> None:
    assert region_of(relation) == region


@pytest.mark.parametrize(
    ("question", "reference", "answer"),
    [
        ("Write $x>3$ in interval notation.", r"(3,\infty)", "x>3"),
        ("Write $3x-y=2$ in slope-intercept form.", "y=3x-2", "3x-y=2"),
        ("The line has slope 3 and meets the y axis at -2: give it in slope-intercept form.", "y=3x-2", "3x-y=2"),
        (r"What is $\sqrt{17}$ as a decimal?", "4.123105625617661", r"\sqrt{17}"),
        ("Solve $x+3=8$.", "5", "x+3=8"),
    ],
)
def test_where_a_form_is_asked_for_the_value_is_no_answer(question: str, reference: str, answer: str) -> None:
    assert matches("boxed", reference, reference, question)
    assert not matches("boxed", answer, reference, question)


@pytest.mark.parametrize(
    "text", ["\u0301\u0327" * 30_000, "½" * 60_000, "1 m " * 15_000, "answer is " * 6_000, "$1" * 30_000]
)
def test_no_text_takes_long(text: str) -> None:
    began = time.thread_time()
    for rule in ("exact", "numeric", "boxed"):
        matches(rule, text, "12", text)  # type: ignore[arg-type]
        matches(rule, text[:MAX_CHARS], "12", text[:MAX_CHARS])  # type: ignore[arg-type]
    assert time.thread_time() - began < 2.0


@pytest.mark.parametrize(
    "piece", ["1 000 ", "]1,", "5 cm, ", r"1\text{ m}", "x<", "1 1/", r"\frac{1}2", "| ", "1 and "]
)
def test_nor_does_notation_up_to_its_bound(piece: str) -> None:
    text = (piece * MAX_CHARS)[:MAX_CHARS]
    began = time.thread_time()
    notation(text)
    equivalent(text, piece)
    assert time.thread_time() - began < 1.0
