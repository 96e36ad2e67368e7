"""Expressions, and what is made of them: exact numbers, polynomials, antiderivatives."""

from __future__ import annotations

import ast
import re
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st
from reasoning_gym.factory import DATASETS

from swarm.environments.scoring.expressions import MAX_CHARACTERS, MAX_TOKENS, Number, Unreadable, evaluate, parse
from swarm.environments.scoring.scorers import (
    OWN_SCORERS,
    WrittenOut,
    coin_flip,
    countdown,
    integration,
    is_antiderivative,
    polynomial_multiplication,
    puzzle24,
)
from swarm.environments.sources.reasoning_gym import make_dataset
from tests.environments.hostile_answers import HOSTILE


class Exact:
    """Arithmetic as Python does it, with powers by small whole numbers."""

    def number(self, value: Fraction) -> Fraction:
        return value

    def name(self, name: str) -> Fraction:
        return Fraction(ord(name[0]))

    def call(self, function: str, argument: Fraction) -> Fraction:
        return abs(argument)

    def operate(self, symbol: str, left: Fraction, right: Fraction) -> Fraction:
        match symbol:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
            case "/":
                return left / right
        return left ** int(right)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2*3", 7),
        ("(1 + 2)*3", 9),
        ("8 - 3 - 2", 3),
        ("24/3/2", 4),
        ("-2**2", -4),
        ("2**-1", Fraction(1, 2)),
        ("2**3**2", 512),
        ("--5", 5),
        ("+-5", -5),
        ("2*-3", -6),
        (".5 + 1.25", Fraction(7, 4)),
        ("f(1 - 3)*2", 4),
        (" ( 7 ) ", 7),
    ],
)
def test_precedence_is_pythons(text: str, value: Fraction) -> None:
    assert evaluate(parse(text), Exact()) == value


@given(
    st.recursive(
        st.integers(0, 99).map(str),
        lambda part: st.tuples(part, st.sampled_from("+-*"), part).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        ),
        max_leaves=20,
    )
)
def test_sums_and_products_are_pythons(text: str) -> None:
    assert evaluate(parse(text), Exact()) == eval(text)  # what hypothesis made of digits and operators


@pytest.mark.parametrize(
    "text",
    ["", " ", "1 2", "1 +", "* 2", "(1", "1)", "()", "f()", "f(1, 2)", "x y", "2x", "x.real", "x[0]", "x = 1", "1 < 2"]
    + ["x_1", "__import__", "'a'", "[1]", "{1}", "1e5", "1_000", "0x10", "1j", "4!", "a if b else c", "lambda: 1"]
    + ["x := 1", "1;2", "1\n", "f'a'", "@x", "x^2", "x // 2", "x % 2", "~x", "１", "ｘ", "x\x00", "é"]
    + ["(" * 31 + "1" + ")" * 31, "2**" * 31 + "2", "9" * 41, "1+" * MAX_TOKENS + "1", "1" + " " * MAX_CHARACTERS],
)
def test_nothing_else_is_an_expression(text: str) -> None:
    with pytest.raises(Unreadable):
        parse(text)


@given(st.text(st.sampled_from("0123456789xyC+-*/(). sincogexp"), max_size=60))
@settings(max_examples=300)
def test_what_can_be_read_is_an_expression_of_python_without_what_could_run(text: str) -> None:
    try:
        steps = parse(text)
    except Unreadable:
        return
    allowed = ast.Expression | ast.BinOp | ast.UnaryOp | ast.Call | ast.Name | ast.Constant | ast.operator | ast.unaryop
    if not any(word[:1] == "0" and word.isdigit() for word in text.replace("*", " ").split()):
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except SyntaxError:
            return  # numbers such as 007, or 1.sin
        assert all(isinstance(node, allowed | ast.expr_context) for node in ast.walk(tree))
    assert len(steps) <= 2 * MAX_TOKENS


@pytest.mark.parametrize(
    ("answer", "score"),
    [("6*x**2 - x*y/2 + 3", 1), ("3 - y*x*0.5 + 3*x*x*2", 1), ("2*(3*x**2 + 1) + 1 - x*y/2", 1), ("x**2*6 + 3", 0)]
    + [("(2*x - y/6)*(3*x) + 3", 0), ("(x + 1)**2", 0), ("x**99999", 0), ("x**y", 0), ("x**-1", 0), ("2**3", 0)]
    + [("sin(x)", 0), ("1/0", 0), ("x/y", 0), ("(x**9999)*(x**9999)", 0)],
)
def test_polynomials_are_compared_as_written_out(answer: str, score: float) -> None:
    assert polynomial_multiplication(answer, {"answer": "6*x**2 - x*y/2 + 3", "metadata": {}}) == score


def test_a_polynomial_has_no_coefficient_0() -> None:
    assert evaluate(parse("x - x + 0*y"), WrittenOut()) == {}


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("x**2*exp(x) - 2*x*exp(x) + 2*exp(x) + C", True),
        ("(x*(x - 2) + 2)*E**x", True),
        ("exp(x)*((x - 1)**2 + 1) - K/3 + pi", True),
        ("x**2*exp(x) - 2*x*exp(x) + C", False),
        ("exp(x)*((x - 1)**2 + 1) + x/10**5", False),
        ("x**2*exp(x)", False),
        ("(x*(x - 2) + 2)*exp(y)", False),
        ("C*((x*(x - 2) + 2)*exp(x))", False),
        ("1/0", False),
        ("log(0)", False),
        ("x**x**x**x**9999999", False),
        ("Integral(x**2*exp(x), x)", False),
        ("Abs(x)", False),
        ("I*x", False),
    ],
)
def test_antiderivatives(answer: str, right: bool) -> None:
    entry = {"answer": "?", "metadata": {"integrand": "x**2*exp(x)", "variable": "x"}}
    assert integration(answer, entry) == float(right)


@pytest.mark.parametrize(
    ("answer", "integrand"),
    [
        ("log(x**2 + 1)/2", "x/(x**2 + 1)"),
        ("2*sqrt(3*x - 7)**3/9", "sqrt(3*x - 7)"),
        ("x*asin(2*x) + sqrt(1 - 4*x**2)/2", "asin(2*x)"),
        ("x*acos(x) - sqrt(1 - x**2)", "acos(x)"),
        ("x*atan(3*x) - log(9*x**2 + 1)/6", "atan(3*x)"),
        ("x*log(x) - x", "log(x)"),
        ("-log(cos(x))", "tan(x)"),
        ("tan(x)", "sec(x)**2"),
        ("-cot(x)", "csc(x)**2"),
        ("ln(sin(x))", "cot(x)"),
        ("sec(x) - csc(x)", "sec(x)*tan(x) + csc(x)*cot(x)"),
        ("log(cosh(x)) + sinh(x)", "tanh(x) + cosh(x)"),
        ("x**x", "x**x*(log(x) + 1)"),
        ("sin(x)**2/2", "sin(2*x)/2"),
    ],
)
def test_every_function_has_its_derivative(answer: str, integrand: str) -> None:
    for seed in ("1", "2", "3"):
        assert is_antiderivative(parse(answer), parse(integrand), "x", seed)
        assert not is_antiderivative(parse(f"{answer} + x/1000"), parse(integrand), "x", seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simple_integration", "intermediate_integration", "polynomial_multiplication"])
def test_the_librarys_answers_are_right_in_another_form_and_wrong_with_a_term_more(name: str) -> None:
    dataset, score = make_dataset(name, 17, {}), OWN_SCORERS[name]
    for index in range(80):
        entry = dataset[index]
        oracle = str(entry["answer"])
        if "Integral" not in oracle:  # which sympy did not find, and only the same text is right
            assert score(f"0 + {oracle}", entry) == 1.0, oracle
            variable = re.findall(r"[xXyz]", oracle)[-1:]  # a constant has none
            for more in (f" + {letter}" for letter in variable):
                assert score(oracle + more, entry) == 0.0, oracle
            assert score(f"2*({oracle}) + x + X", entry) == 0.0, oracle


@pytest.mark.parametrize(
    ("answer", "score"),
    [("40*(94 - 90) + 83 - 74", 1), ("-74 + 83 + (94 - 90)*40", 1), ("40*94 - 90 + 83 - 74", 0.05), ("169", 0.05)]
    + [("40*(94 - 90) + 83 - 74 + 0", 0.05), ("40*(94 - 90)", 0.05), ("169 = 169", 0.01), ("x", 0.05), ("", 0.01)]
    + [("40/(94 - 90 - 83 + 74 + 5 - 5)", 0.05), ("94/(90 - 90)", 0.05), ("40**(94 - 90) + 83 - 74", 0.01)],
)
def test_countdown(answer: str, score: float) -> None:
    entry = {"metadata": {"numbers": [40, 94, 90, 83, 74], "target": 169}}
    assert countdown(answer, entry) == score


@pytest.mark.parametrize(
    ("answer", "score"),
    [("1*(7*4 - 4)", 1), ("7*4 - 4*1", 1), ("4*6*1*1", 0.01), ("4! + 7*1 - 7", 0.01), ("7*4 - 4 + 1/1", 0.01)],
)
def test_puzzle24_wants_the_questions_numbers(answer: str, score: float) -> None:
    assert puzzle24(answer, {"metadata": {"numbers": [7, 4, 1, 4]}}) == score


@pytest.mark.parametrize(
    ("answer", "score"),
    [("0.375", 1), (".375", 1), ("3/8", 1), ("3.75e-1", 1), ("0.37505", 1), ("0", 0.2), ("0.3", 0.6), ("1", 0)]
    + [("0.5", 0.4), ("nan", 0), ("1e999999999", 0), ("1/0", 0), ("3/8 ", 1), ("37.5%", 0), ("1e-999999999", 0)],
)
def test_coin_flip(answer: str, score: float) -> None:
    assert coin_flip(answer, {"answer": "0.375"}) == pytest.approx(score)


@pytest.mark.parametrize(
    ("name", "oracle", "scores"),
    [
        ("game_of_life_halting", "False", {"False": 1, " false": 1, "True": 0, "x": 0}),
        ("binary_matrix", "0 1\n2 1", {"0 1\n2 1": 1, "[[0, 1], [2, 1]]": 0.1, "[[0, 1]]": 0, "[0, 1]": 0, "0": 0}),
        ("spiral_matrix", "1 2 3", {"1 2 3": 1, "[1, 2, 3]": 0.1, "[3]": 0, "(1, 2, 3)": 0}),
        ("string_insertion", "AB", {"AB": 1, "['A', 'B']": 0.1, '["A"]': 0, "A": 0}),
        (
            "codeio",
            '{"a": [1, 2]}',
            {'{"a":[1,2]}': 1, 'It is {"a": [1, 2]}': 0.8125, '{"a": [1]}': 0, "{": 0, "}{": 0},
        ),
    ],
)
def test_other_scorers_of_our_own(name: str, oracle: str, scores: dict[str, float]) -> None:
    for answer, score in scores.items():
        assert OWN_SCORERS[name](answer, {"answer": oracle, "metadata": {}}) == pytest.approx(score), answer


def test_n_queens_takes_any_solution() -> None:
    entry = {"answer": "Q _", "metadata": {"valid_answers": ["Q _", "_ Q"]}}
    score = OWN_SCORERS["n_queens"]
    assert [score(answer, entry) for answer in ("_ Q", '[["_", "Q"]]', "[['Q', 'Q']]", "")] == [1.0, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("name", sorted(OWN_SCORERS))
def test_no_text_takes_long(name: str) -> None:
    entry = make_dataset(name, 3, {})[0]
    for answer in HOSTILE:
        began = time.thread_time()
        OWN_SCORERS[name](answer, entry)
        assert time.thread_time() - began < 1.0, answer[:80]


def test_every_data_set_scored_here_is_the_librarys() -> None:
    assert set(OWN_SCORERS) <= set(DATASETS)
    assert Number(Fraction(1)) in parse("1")
