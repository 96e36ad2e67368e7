"""Tests numerically whether an expression's derivative is a given one; symbolic algebra would take unbounded time."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from msgspec import Struct

from swarm.environments.digests import draw
from swarm.environments.scoring.expressions import Step, Unreadable, evaluate

NUM_POINTS = 8
MIN_POINTS = 5
"""Least number of points where both are finite; with fewer the answer counts as wrong."""
RELATIVE_TOLERANCE = 1e-9
"""Far above rounding errors, far below the effect of a wrong term."""

_CONSTANTS = {"pi": math.pi, "E": math.e}
_NOT_CONSTANTS = frozenset("INOQS")
"""Letters that sympy does not treat as symbols; `E` is a constant."""

_FUNCTIONS: dict[str, tuple[Callable[[complex], complex], Callable[[complex], complex]]] = {
    "exp": (cmath.exp, cmath.exp),
    "log": (cmath.log, lambda u: 1 / u),
    "sqrt": (cmath.sqrt, lambda u: 0.5 / cmath.sqrt(u)),
    "sin": (cmath.sin, cmath.cos),
    "cos": (cmath.cos, lambda u: -cmath.sin(u)),
    "tan": (cmath.tan, lambda u: 1 / cmath.cos(u) ** 2),
    "sec": (lambda u: 1 / cmath.cos(u), lambda u: cmath.sin(u) / cmath.cos(u) ** 2),
    "csc": (lambda u: 1 / cmath.sin(u), lambda u: -cmath.cos(u) / cmath.sin(u) ** 2),
    "cot": (lambda u: 1 / cmath.tan(u), lambda u: -1 / cmath.sin(u) ** 2),
    "asin": (cmath.asin, lambda u: 1 / cmath.sqrt(1 - u * u)),
    "acos": (cmath.acos, lambda u: -1 / cmath.sqrt(1 - u * u)),
    "atan": (cmath.atan, lambda u: 1 / (1 + u * u)),
    "sinh": (cmath.sinh, cmath.cosh),
    "cosh": (cmath.cosh, cmath.sinh),
    "tanh": (cmath.tanh, lambda u: 1 / cmath.cosh(u) ** 2),
}
_FUNCTIONS["ln"] = _FUNCTIONS["log"]
"""Functions with their derivatives; all are analytic, so that complex points are as good as real ones."""


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
        if function not in _FUNCTIONS:
            raise Unreadable(f"there is no function {function!r}")
        value, slope = _FUNCTIONS[function]
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
