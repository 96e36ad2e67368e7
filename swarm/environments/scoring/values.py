r"""Values of normalised LaTeX expressions: exact where they are rational, else complex numbers in floats."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from swarm.environments.scoring.expressions import (
    LATEX,
    BoundedRationals,
    Step,
    Unreadable,
    arithmetic,
    evaluate,
    parse,
)

MAX_VALUE = 1e300
"""Beyond it, and for nan, an expression has no value: differences and magnitudes of others do not overflow."""
_MAX_FACTORIAL = 100

_FUNCTIONS: dict[str, Callable[[complex], complex]] = {
    "\\arcsin": cmath.asin,
    "\\arccos": cmath.acos,
    "\\arctan": cmath.atan,
    "\\sinh": cmath.sinh,
    "\\cosh": cmath.cosh,
    "\\tanh": cmath.tanh,
    "\\sin": cmath.sin,
    "\\cos": cmath.cos,
    "\\tan": cmath.tan,
    "\\sec": lambda x: 1 / cmath.cos(x),
    "\\csc": lambda x: 1 / cmath.sin(x),
    "\\cot": lambda x: 1 / cmath.tan(x),
    "\\exp": cmath.exp,
    "\\log": cmath.log,
    "\\ln": cmath.log,
    "sqrt": cmath.sqrt,
    "abs": lambda x: complex(abs(x)),
    "%": lambda x: x / 100,
    "!": lambda x: complex(math.factorial(_count(x))),
}
CONSTANTS = {"\\pi": complex(math.pi), "e": complex(math.e), "i": 1j}

Names = Callable[[str], complex]
"""The value of a letter."""


def read(text: str) -> tuple[Step, ...] | None:
    """The steps of a normalised expression; None for any other text."""
    try:
        return parse(text, LATEX)
    except Unreadable:
        return None


def value(steps: Sequence[Step], names: Names) -> complex | None:
    """The value of an expression for these values of its letters; None if it has none, or no finite one."""
    try:
        found = evaluate(steps, Complexes(names))
    except (ArithmeticError, ValueError):  # Unreadable is one
        return None
    return found if max(abs(found.real), abs(found.imag)) < MAX_VALUE else None


def number_of(steps: Sequence[Step]) -> int | float | None:
    """The value of an expression without letters, whole numbers exactly; None with letters, and if it is not real."""
    try:
        exact = evaluate(steps, _Exact())
        return exact.numerator if exact.denominator == 1 else float(exact)
    except (ArithmeticError, Unreadable):
        found = value(steps, no_names)
    return found.real if found is not None and abs(found.imag) <= 1e-12 * abs(found.real) else None


def no_names(name: str) -> complex:
    """Raises `Unreadable`: the expression must have no letters."""
    raise Unreadable(name)


class _Exact(BoundedRationals):
    """Adds what LaTeX has of rational values."""

    def call(self, function: str, argument: Fraction) -> Fraction:
        match function:
            case "abs":
                return abs(argument)
            case "%":
                return argument / 100
            case "!":
                return Fraction(math.factorial(_count(argument)))
        return super().call(function, argument)

    def operate(self, symbol: str, left: Fraction, right: Fraction) -> Fraction:
        match symbol:
            case "mixed":
                return left + right
            case "binom":
                return Fraction(math.comb(_count(left), _count(right)))
        return super().operate(symbol, left, right)


class Complexes:
    """Implements `Algebra` for complex numbers, with these values of letters."""

    def __init__(self, names: Names) -> None:
        """`names` raises `Unreadable` for a letter that must not occur."""
        self._names = names

    def number(self, value: Fraction) -> complex:
        """In floats."""
        return complex(float(value))

    def name(self, name: str) -> complex:
        """A constant, or the value of a letter."""
        return CONSTANTS[name] if name in CONSTANTS else self._names(name)

    def call(self, function: str, argument: complex) -> complex:
        """Raises `ArithmeticError` and `ValueError` where it has no value."""
        return _FUNCTIONS[function](argument)

    def operate(self, symbol: str, left: complex, right: complex) -> complex:
        """Raises `ArithmeticError` where there is no value, and `Unreadable` for binomials that are not small."""
        match symbol:
            case "mixed":
                return left + right
            case "log":
                return cmath.log(left) / cmath.log(right)
            case "binom":
                return complex(math.comb(_count(left), _count(right)))
            case "root":
                return _root(left, right)
            case "**":
                return _raise(left, right)
        return arithmetic(symbol, left, right)


def _raise(base: complex, exponent: complex) -> complex:
    """A power, in real numbers where it is real; 0 and 1 are frequent exponents."""
    if base.imag == exponent.imag == 0 and (base.real >= 0 or exponent.real.is_integer()):
        return complex(base.real**exponent.real)
    return base**exponent


def _root(radicand: complex, degree: complex) -> complex:
    """The real root where there is one."""
    if degree == 2:
        return cmath.sqrt(radicand)
    if radicand.imag == 0 and radicand.real < 0 and degree.imag == 0 and degree.real % 2 == 1:
        return -_raise(-radicand, 1 / degree)
    return _raise(radicand, 1 / degree)


def _count(number: complex | Fraction) -> int:
    """A small natural number. Raises `Unreadable`."""
    if number.imag or not 0 <= number.real <= _MAX_FACTORIAL or number.real != int(number.real):
        raise Unreadable(str(number))
    return int(number.real)
