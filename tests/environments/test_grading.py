"""Tables and invariants of comparing answers."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from swarm.environments.answering import MatchRule
from swarm.environments.scoring.expressions import number_of, read
from swarm.environments.scoring.finding import by_match_rule
from swarm.environments.scoring.grading import exact, last_number, matches, numeric
from swarm.environments.scoring.mathematics import NUM_POINTS, _Comparison, equivalent
from swarm.environments.scoring.statements import boxed_content
from tests.processor_time import grows_linearly


@pytest.mark.parametrize(
    ("answer", "reference", "equal"),
    [
        ("Paris", "paris", True),
        ("  new\n york ", "New York", True),
        ("newyork", "new york", False),
        ("", "a", False),
    ],
)
def test_exact(answer: str, reference: str, equal: bool) -> None:
    assert exact(answer, reference) is equal


@pytest.mark.parametrize(
    ("answer", "reference", "equal"),
    [
        ("42", "42", True),
        ("42.0", "42", True),
        ("the total is $1,234.50.", "1234.5", True),
        ("-$5", "-5", True),
        ("$-5", "-5", True),
        ("−7", "-7", True),
        ("+3", "3", True),
        ("1/2", "0.5", True),
        ("-3/4", "-0.75", True),
        ("1/0", "1", False),
        (r"\frac{1}{4}", "0.25", True),
        ("50%", "0.5", True),
        ("50%", "50", True),
        ("50", "50%", True),
        ("50%", "50%", True),
        ("50%", "5", False),
        ("1e3", "1000", True),
        ("3 x 10^5", "300000", True),
        (r"3 \times 10^{-2}", "0.03", True),
        ("0.3333333", "1/3", True),
        ("0.333", "1/3", False),
        ("1000000", "1000001", False),
        ("12345678901234567890", "12345678901234567891", False),
        ("9 - 4 = 5", "5", True),
        ("10-3", "3", True),
        ("first 7, then 8", "8", True),
        ("first 8, then 7", "8", False),
        ("5.", "5", True),
        (".5", "0.5", True),
        ("none", "5", False),
        ("1e999", "1e999", False),
        ("0", "0.0", True),
        pytest.param("9" * 320 + "%", "5", False, id="a percentage beyond floats"),
        pytest.param("5", "9" * 320 + "%", False, id="of a percentage beyond floats"),
        ("0.0000001", "0", False),
        ("12 apples", "12", True),
        (r"1{,}000", "1000", True),
    ],
)
def test_numeric(answer: str, reference: str, equal: bool) -> None:
    assert numeric(answer, reference) is equal


@pytest.mark.parametrize(
    ("answer", "reference", "equal"),
    [
        (r"\boxed{42}", "42", True),
        (r"\frac{1}{2}", "0.5", True),
        (r"\dfrac12", r"\frac{1}{2}", True),
        ("1/2", r"\tfrac{1}{2}", True),
        (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}", True),
        (r"2\sqrt{3}", r"\sqrt{12}", True),
        (r"\sqrt[3]{27}", "3", True),
        (r"2\pi", "6.283185307", True),
        ("2^{10}", "1024", True),
        (r"x = 5", "5", True),
        (r"f(x)=2x+1", "2x+1", True),
        ("x^2 + 1", "x^2+1", True),
        (r"\left( 1, \frac{1}{2} \right)", "(1, 0.5)", True),
        ("(1,2)", "(2,1)", False),
        ("[1,2)", "(1,2)", False),
        ("(1,2)", "(1,2,3)", False),
        (r"\{1,2\}", r"\{1, 2\}", True),
        ("1,000", "1000", True),
        (r"50\%", "0.5", True),
        (r"90^\circ", "90", True),
        (r"\text{Yes}", "yes", True),
        (r"5\text{ cm}", "5", True),
        (r"-\frac{3}{4}", "-0.75", True),
        ("3", "4", False),
        ("", "", False),
        ("x+1", "x+2", False),
        (r"\frac{1}{0}", r"\frac{2}{0}", False),
        ("9^9^9^9", "1", False),
        (r"\sqrt{-1}", "1", False),
        ("__import__('os')", "1", False),
        (r"10^{400}", r"10^{401}", False),
        (r"1\frac{1}{2}", "1.5", True),
        (r"1\frac{1}{2}", r"\frac{1}{2}", False),
        (r"x^2\frac{1}{2}", r"\frac{x^2}{2}", True),
        (r"0.1\overline{6}", r"\frac{1}{6}", True),
        (r"\$1{,}250", "1250", True),
        ("5!", "120", True),
        ("500!", "1", False),
        (r"\binom{5}{2}", "10", True),
        (r"\log_2 8", "3", True),
        (r"\sqrt[3]{-8}", "-2", True),
        (r"(-8)^{1/3}", "-2", False),
    ],
)
def test_boxed(answer: str, reference: str, equal: bool) -> None:
    assert equivalent(answer, reference) is equal
    assert equivalent(reference, answer) is equal


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("x+1", "1+x", True),
        ("x+1", "1-x", False),
        (r"\frac{x}{2}", "x/2", True),
        (r"\frac x2", r"\frac{x}{2}", True),
        ("(x-1)(x+2)", "x^2+x-2", True),
        ("(x-1)(x+2)", "x^2+x+2", False),
        ("3x^2y", "3yx^2", True),
        ("2x", "x^2", False),
        (r"\sin^2 x + \cos^2 x", "1", True),
        (r"2\sin x\cos x", r"\sin 2x", True),
        (r"\cos^2\theta - \sin^2\theta", r"\cos 2\theta", True),
        (r"\sin x^2", r"\sin^2 x", False),
        (r"\ln x + \ln y", r"\ln(xy)", True),
        (r"e^{i\pi}", "-1", True),
        ("3+4i", "4i+3", True),
        ("(1+i)^2", "2i", True),
        ("3+4i", "3-4i", False),
        (r"|x-1|", r"\lvert 1-x\rvert", True),
        (r"|x|", "x", False),
        (r"\alpha\beta", r"\beta\alpha", True),
        (r"\alpha", r"\beta", False),
        ("x", "y", False),
        ("x+0.0000001", "x", False),
        ("(B)", "B", True),
        (r"\text{(B)}", "B", True),
        ("(B)", "C", False),
    ],
)
def test_expressions_with_letters(one: str, other: str, equal: bool) -> None:
    assert equivalent(one, other) is equal and equivalent(other, one) is equal


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (r"\{1,2\}", r"\{2,1\}", True),
        (r"\{1,1,2\}", r"\{1,2,2\}", False),
        ("1, 2", "2,1", True),
        (r"x=1\text{ or }x=2", "2, 1", True),
        (r"1\pm\sqrt{2}", r"1-\sqrt 2, 1+\sqrt 2", True),
        (r"\pm 3", "3", False),
        ("(1,2)", "1,2", False),
        (r"(-\infty, 1)\cup(2,\infty)", r"\left(2,+\infty\right) \cup (-\infty,1)", True),
        (r"(-\infty, 1)\cup(2,\infty)", r"(-\infty, 1]\cup(2,\infty)", False),
        (r"x\in[1,2]", "[1,2]", True),
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix}1&2\\3&\frac{8}{2}\end{bmatrix}", True),
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix}1&3\\2&4\end{pmatrix}", False),
        (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}", False),
        (r"\begin{vmatrix} 1 \end{vmatrix}", r"\begin{pmatrix} 1 \end{pmatrix}", False),
        ("x^2+y^2=1", "y^2=1-x^2", True),
        ("2x+4y=6", "x+2y=3", True),
        ("x^2+y^2=1", "x^2+y^2=2", False),
        ("y=2x+1", "1+2x", True),
        (r"x \geq 3", "3 <= x", True),
        ("x>3", r"x \ge 3", False),
        ("x>3", "x<3", False),
        ("-x>3", "x<-3", True),
        ("1<x<3", "1 < x < 3", True),
    ],
)
def test_answers_of_several_parts(one: str, other: str, equal: bool) -> None:
    assert equivalent(one, other) is equal and equivalent(other, one) is equal


@pytest.mark.parametrize("words", [("listen", "silent"), ("no", "on"), (r"\text{east}", r"\text{seat}")])
def test_words_are_not_products_of_letters(words: tuple[str, str]) -> None:
    assert not equivalent(*words) and equivalent(words[0], f" {words[0]}. ")


def test_nobody_can_aim_at_the_points() -> None:
    """The wrong term is zero at the points of another pair, but every pair has its own."""
    comparison = _Comparison("x\nx")
    seen = [comparison._letter(point, "x").real for point in range(NUM_POINTS)]
    zeros = "".join(f"(x-{point!r})" for point in seen)
    assert not equivalent(f"x+{zeros}", "x")


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{1} no \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{a{b{c}}}", "a{b{c}}"),
        (r"\boxed{3} and \boxed{unclosed", "3"),
        (r"\fbox {7}", "7"),
        ("none", None),
    ],
)
def test_the_last_closed_box_counts(text: str, content: str | None) -> None:
    assert boxed_content(text) == content


def score(rule: MatchRule, completion: str, reference: str) -> float:
    """As a data set's task scores with its default settings."""
    answer = by_match_rule(rule, completion)
    return float(answer is not None and matches(rule, answer, reference))


@pytest.mark.parametrize(
    ("rule", "completion", "found"),
    [
        ("exact", "<answer>a</answer> <answer> b </answer>", "b"),
        ("exact", r"thus \boxed{b}", "b"),
        ("exact", "b", None),
        ("boxed", "b", None),
        ("numeric", "it is 5", "it is 5"),
        ("numeric", r"<answer>4</answer> but \boxed{5}", "4"),
        ("exact", "</answer><answer>", None),
    ],
)
def test_where_the_answer_is_looked_for(rule: str, completion: str, found: str | None) -> None:
    assert by_match_rule(rule, completion) == found  # type: ignore[arg-type]


def test_score_joins_the_two() -> None:
    assert score("boxed", r"so \boxed{\frac{2}{4}}", "1/2") == 1.0
    assert score("numeric", "<answer>about 7</answer>", "7") == 1.0
    assert score("exact", "no tags: 7", "7") == 0.0


@given(st.integers(-(10**20), 10**20))
def test_whole_numbers_equal_themselves_however_written_and_nothing_else(number: int) -> None:
    assert numeric(f"<b>{number:,}</b>", str(number))
    assert not numeric(str(number + 1), str(number))
    assert equivalent(rf"\boxed{{{number}}}", str(number))


@given(st.integers(-999, 999), st.integers(1, 999))
def test_fractions_equal_their_quotient(top: int, bottom: int) -> None:
    assert number_of(read(rf"\frac{{{top}}}{{{bottom}}}") or ()) == pytest.approx(top / bottom)
    assert equivalent(f"{top}/{bottom}", repr(round(top / bottom, 12)))


@given(st.text(st.sampled_from("0123456789.,-+/%$e^(){}[]\\ fracsqtboxed=×π\n"), max_size=120), st.text(max_size=20))
def test_no_text_is_an_error(text: str, other: str) -> None:
    for rule in ("exact", "numeric", "boxed"):
        assert score(rule, text, other) in (0.0, 1.0)  # type: ignore[arg-type]
        assert score(rule, f"<answer>{text}</answer>", other) in (0.0, 1.0)  # type: ignore[arg-type]
    last_number(text)


@pytest.mark.parametrize(
    "piece",
    [
        *("1,111", "\\boxed{", "((", "\\frac{", "-", "9", "9^", "1/", " ", "\\text{", "x=", "{", "\\sqrt", "1 ", "10^"),
        *("1,", "\\sin", "|", "!", "x\\pm", "\\cup", "\\{1,", "&", "\\\\", "x<", "0.\\overline{", " or "),
    ],
)
def test_long_text_takes_no_quadratic_time(piece: str) -> None:
    assert _grades_in_linear_time("", piece, "")


@pytest.mark.parametrize(
    ("start", "piece", "end"),
    [("1", ",111", ","), ("\\boxed{^", " ", "x}"), ("\\boxed{^{", " ", "x}"), ("\\boxed{\\text{", "a", "x}")],
)
def test_nor_does_what_fits_a_pattern_up_to_its_end(start: str, piece: str, end: str) -> None:
    assert _grades_in_linear_time(start, piece, end)


def _grades_in_linear_time(start: str, piece: str, end: str) -> bool:
    def graded(length: int) -> None:
        text = start + piece * (length // len(piece)) + end
        for rule in ("exact", "numeric", "boxed"):
            score(rule, f"<answer>{text}</answer>", "1")  # type: ignore[arg-type]
            score(rule, text, "1")  # type: ignore[arg-type]

    return grows_linearly(graded, 15_000)
