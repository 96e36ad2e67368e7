"""Expanded polynomials, sums of products of numbers and variables, compared by their coefficients."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from swarm.environments.scoring.expressions import Unreadable

MAX_DEGREE = 10_000

Monomial = frozenset[tuple[str, int]]
"""Variables with their positive exponents; empty for the constant term."""
Polynomial = dict[Monomial, Fraction]
"""Coefficients, none of them 0."""

_ONE: Monomial = frozenset()


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
