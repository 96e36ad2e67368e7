"""Replacements of library scorers that must not see a foreign answer, with their algebras.

Nine of the library's scorers evaluate the answer as code; one compares trees in time that grows with the fourth power
of their size; the others reward wrong answers. Rewards for right answers equal the library's, as does partial credit
for answers in another form. Nothing here evaluates text, and every function's time is bounded.
`benchmarks/results/scorers.md` lists the problem of each data set.
"""

from __future__ import annotations

import cmath
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from os.path import commonprefix

from msgspec import Struct
from pydantic import JsonValue

from swarm.environments.digests import draw
from swarm.environments.scoring.answer_guard import read_json
from swarm.environments.scoring.expressions import FUNCTIONS, Number, Rationals, Step, Unreadable, evaluate, parse
from swarm.environments.scoring.logic import propositional_logic

MAX_DEGREE = 10_000

Monomial = frozenset[tuple[str, int]]
"""Variables with their positive exponents; empty for the constant term."""
Polynomial = dict[Monomial, Fraction]
"""Coefficients, none of them 0."""

_ONE: Monomial = frozenset()
NUM_POINTS = 8
MIN_POINTS = 5
"""Least number of points where both are finite; with fewer the answer counts as wrong."""
RELATIVE_TOLERANCE = 1e-9
"""Far above rounding errors, far below the effect of a wrong term."""
_CONSTANTS = {"pi": math.pi, "E": math.e}
_NOT_CONSTANTS = frozenset("INOQS")
"""Letters that sympy does not treat as symbols; `E` is a constant."""
Entry = Mapping[str, object]
"""The library's item: `question`, `answer`, `metadata`."""
COIN_TOLERANCE = Fraction(1, 10_000)
_DECIMAL = r"[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})"
_PROBABILITY = re.compile(rf"{_DECIMAL}(?:[eE][+-]?[0-9]{{1,2}})?|[+-]?[0-9]{{1,40}}/[0-9]{{1,40}}")


class WrittenOut:
    """Implements `Algebra`; a product or power of sums is `Unreadable`, because expanding it is the task."""

    def number(self, value: Fraction) -> Polynomial:
        """A constant."""
        return {_ONE: value} if value else {}

    def name(self, name: str) -> Polynomial:
        """A variable."""
        return {frozenset({(name, 1)}): Fraction(1)}

    def call(self, function: str, argument: Polynomial) -> Polynomial:
        """Polynomials have none. Raises `Unreadable`."""
        raise Unreadable(f"a polynomial has no function, got {function!r}")

    def operate(self, symbol: str, left: Polynomial, right: Polynomial) -> Polynomial:
        """Sums of polynomials, multiples of them, products of monomials, powers of variables. Raises `Unreadable`."""
        match symbol:
            case "+":
                return _add(left, right, 1)
            case "-":
                return _add(left, right, -1)
            case "*":
                return _multiply(left, right)
            case "/":
                return _multiply(left, {_ONE: 1 / _constant(right)})
        return _raise(left, _constant(right))


def _add(left: Polynomial, right: Polynomial, sign: int) -> Polynomial:
    total = dict(left)
    for monomial, coefficient in right.items():
        value = total.pop(monomial, Fraction(0)) + sign * coefficient
        if value:
            total[monomial] = value
    return total


def _multiply(left: Polynomial, right: Polynomial) -> Polynomial:
    if len(left) > len(right):
        left, right = right, left
    if not left:
        return {}
    factor, multiplier = next(iter(left.items()))
    if len(right) > 1 and (len(left) > 1 or factor != _ONE):
        raise Unreadable("a product of sums is not expanded")
    return {_times(factor, monomial): multiplier * coefficient for monomial, coefficient in right.items()}


def _times(left: Monomial, right: Monomial) -> Monomial:
    return _bounded(Counter(dict(left)) + Counter(dict(right)))


def _raise(base: Polynomial, exponent: Fraction) -> Polynomial:
    if len(base) != 1 or exponent.denominator != 1 or not 0 <= exponent <= MAX_DEGREE:
        raise Unreadable(f"only a variable may have a power, up to {MAX_DEGREE}")
    monomial, coefficient = next(iter(base.items()))
    if coefficient != 1 or len(monomial) != 1:
        raise Unreadable("only a variable may have a power")
    return {_bounded(Counter({variable: degree * int(exponent) for variable, degree in monomial})): Fraction(1)}


def _bounded(exponents: Counter[str]) -> Monomial:
    if sum(exponents.values()) > MAX_DEGREE:
        raise Unreadable(f"the degree must be at most {MAX_DEGREE}")
    return frozenset((+exponents).items())


def _constant(polynomial: Polynomial) -> Fraction:
    """Raises `Unreadable` for one with variables."""
    if any(monomial != _ONE for monomial in polynomial):
        raise Unreadable("only a constant may be a divisor or an exponent")
    return polynomial.get(_ONE, Fraction(0))


class Dual(Struct, frozen=True):
    """A value and its derivative at a point."""

    value: complex
    slope: complex = 0j


def is_antiderivative(answer: Sequence[Step], integrand: Sequence[Step], variable: str, seed: str) -> bool:
    """Whether the derivative of `answer` is `integrand`, at points derived from `seed`.

    The seed should depend on the answer: otherwise an expression could be correct at the known points alone. Other
    single letters are constants of arbitrary value.
    """
    num_equal = 0
    for number in range(NUM_POINTS):
        at = _Point(variable, seed, number)
        try:
            slope, wanted = evaluate(answer, at).slope, evaluate(integrand, at).value
        except (ArithmeticError, ValueError) as error:
            if isinstance(error, Unreadable):
                return False
            continue  # a pole, or out of range: try another point
        if not (cmath.isfinite(slope) and cmath.isfinite(wanted)):
            continue
        if abs(slope - wanted) > RELATIVE_TOLERANCE * abs(wanted):
            return False
        num_equal += 1
    return num_equal >= MIN_POINTS


class _Point:
    """Implements `Algebra` for values and derivatives at one point off the real axis, where branch cuts lie."""

    def __init__(self, variable: str, seed: str, number: int) -> None:
        self._variable = variable
        self._seed = seed
        self._number = number

    def _random(self, what: str, low: float, high: float) -> float:
        return low + (high - low) * draw(2**32, "antiderivative", self._seed, self._number, what) / 2**32

    def number(self, value: Fraction) -> Dual:
        return Dual(complex(float(value)))

    def name(self, name: str) -> Dual:
        if name in _CONSTANTS:
            return Dual(complex(_CONSTANTS[name]))
        if len(name) > 1 or name in _NOT_CONSTANTS:
            raise Unreadable(f"there is no constant {name!r}")
        side = 1 if self._number % 2 else -1
        at = complex(self._random(f"{name} real", -1.5, 1.5), side * self._random(f"{name} imaginary", 0.01, 0.1))
        return Dual(at, 1 + 0j) if name == self._variable else Dual(at)

    def call(self, function: str, argument: Dual) -> Dual:
        if function not in FUNCTIONS:
            raise Unreadable(f"there is no function {function!r}")
        value, slope = FUNCTIONS[function]
        return Dual(value(argument.value), slope(argument.value) * argument.slope)

    def operate(self, symbol: str, left: Dual, right: Dual) -> Dual:
        a, b = left.value, right.value
        match symbol:
            case "+":
                return Dual(a + b, left.slope + right.slope)
            case "-":
                return Dual(a - b, left.slope - right.slope)
            case "*":
                return Dual(a * b, left.slope * b + a * right.slope)
            case "/":
                return Dual(a / b, (left.slope - a / b * right.slope) / b)
        return _power(left, right)


def _power(base: Dual, exponent: Dual) -> Dual:
    a, b = base.value, exponent.value
    if exponent.slope == 0:
        return Dual(a**b, b * a ** (b - 1) * base.slope if b else 0j)
    power = a**b
    return Dual(power, power * (exponent.slope * cmath.log(a) + b * base.slope / a))


def binary_matrix(answer: str, entry: Entry) -> float:
    """Rows of numbers."""
    return _rows(answer, (_oracle(entry),), 0.1)


def n_queens(answer: str, entry: Entry) -> float:
    """Rows of squares; any placement that solves the board."""
    solutions = _metadata(entry)["valid_answers"]
    assert isinstance(solutions, Collection)
    return _rows(answer, solutions, 0.5)


def spiral_matrix(answer: str, entry: Entry) -> float:
    """Numbers separated by spaces."""
    answer, oracle = answer.strip(), _oracle(entry).strip()
    if answer == oracle:
        return 1.0
    numbers = _list(answer)
    return 0.1 if numbers is not None and " ".join(map(str, numbers)) == oracle else 0.0


def string_insertion(answer: str, entry: Entry) -> float:
    """One word."""
    if answer == _oracle(entry):
        return 1.0
    letters = _list(answer)
    return 0.1 if letters is not None and "".join(map(str, letters)) == _oracle(entry) else 0.0


def countdown(answer: str, entry: Entry) -> float:
    """An expression that uses each number once and has the target as its value."""
    return _arithmetic(answer, _metadata(entry)["numbers"], _metadata(entry)["target"], 0.05)


def puzzle24(answer: str, entry: Entry) -> float:
    """An expression of the four numbers whose value is 24."""
    return _arithmetic(answer, _metadata(entry)["numbers"], 24, 0.01)


def polynomial_multiplication(answer: str, entry: Entry) -> float:
    """The expanded product."""
    answer, oracle = answer.strip(), _oracle(entry)
    if answer == oracle:
        return 1.0
    try:
        return float(evaluate(parse(answer), WrittenOut()) == evaluate(parse(oracle), WrittenOut()))
    except (Unreadable, ZeroDivisionError):
        return 0.0


def integration(answer: str, entry: Entry) -> float:
    """An antiderivative, up to a constant."""
    answer = answer.strip()
    if answer == _oracle(entry):
        return 1.0
    metadata = _metadata(entry)
    try:
        steps, integrand = parse(answer), parse(str(metadata["integrand"]))
    except Unreadable:
        return 0.0
    return float(is_antiderivative(steps, integrand, str(metadata["variable"]), answer))


def coin_flip(answer: str, entry: Entry) -> float:
    """A probability as a decimal or a fraction, within 1e-4; else the fraction of its correct digits."""
    given, wanted = (text.replace(",", "").strip() for text in (answer, _oracle(entry)))
    if _PROBABILITY.fullmatch(given) is None:
        return 0.0
    try:
        value, oracle = Fraction(given), Fraction(wanted)
    except ZeroDivisionError:
        return 0.0
    if abs(value - oracle) <= COIN_TOLERANCE:
        return 1.0
    digits, oracle_digits = f"{float(value):.10g}", f"{float(oracle):.10g}"
    return len(commonprefix([digits, oracle_digits])) / max(len(digits), len(oracle_digits))


def codeio(answer: str, entry: Entry) -> float:
    """The requested JSON object; surrounding text lowers the reward."""
    answer, oracle = answer.strip(), _oracle(entry).strip()
    if answer == oracle:
        return 1.0
    start, end = answer.find("{"), answer.rfind("}") + 1
    value = read_json(answer[start:end], max_string=len(answer)) if 0 <= start < end else None
    if value is None or value != json.loads(oracle):
        return 0.0
    num_extra = len(answer) - (end - start)
    return max(len(oracle) / (len(oracle) + 0.5 * num_extra), 0.2)


def game_of_life_halting(answer: str, entry: Entry) -> float:
    """True or False."""
    return float(answer.strip().casefold() == _oracle(entry).casefold())


OWN_SCORERS: dict[str, Callable[[str, Entry], float]] = {
    "binary_matrix": binary_matrix,
    "codeio": codeio,
    "coin_flip": coin_flip,
    "countdown": countdown,
    "game_of_life_halting": game_of_life_halting,
    "intermediate_integration": integration,
    "n_queens": n_queens,
    "polynomial_multiplication": polynomial_multiplication,
    "propositional_logic": propositional_logic,
    "puzzle24": puzzle24,
    "simple_integration": integration,
    "spiral_matrix": spiral_matrix,
    "string_insertion": string_insertion,
}
"""Scorers by the library's name of the data set."""
SCORED_OTHERWISE = {"knights_knaves": 2, "propositional_logic": 2}
"""Version of how answers of a data set are scored, where it has changed: part of a question's digest, so that nodes of
different versions refuse each other's questions instead of each other's rewards."""


def _oracle(entry: Entry) -> str:
    return str(entry["answer"])


def _metadata(entry: Entry) -> Mapping[str, object]:
    metadata = entry["metadata"]
    assert isinstance(metadata, Mapping)
    return metadata


def _list(answer: str) -> list[JsonValue] | None:
    """A list of numbers and words, or of such lists, in Python's notation or JSON's; None for anything else."""
    value = read_json(answer.replace("'", '"'))
    return value if isinstance(value, list) else None


def _rows(answer: str, accepted: Collection[str], partial: float) -> float:
    """1 for one of the texts accepted, `partial` for a list of lists that makes one of them."""
    if answer in accepted:
        return 1.0
    rows = [row for row in _list(answer) or [] if isinstance(row, list)]
    return partial if "\n".join(" ".join(map(str, row)) for row in rows) in accepted else 0.0


def _arithmetic(answer: str, numbers: object, target: object, credit: float) -> float:
    """1 for an expression that uses each of `numbers` once and gives the target; `credit` if it can be read."""
    assert isinstance(numbers, list) and isinstance(target, int)
    try:
        steps = parse(answer.strip())
        if sorted(step.value for step in steps if isinstance(step, Number)) != sorted(numbers):
            return credit
        return 1.0 if evaluate(steps, Rationals()) == target else credit
    except (Unreadable, ZeroDivisionError):
        return 0.01
