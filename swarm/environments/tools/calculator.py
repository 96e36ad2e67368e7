"""A calculator: exact arithmetic on numbers of bounded size, by our own parser."""

from __future__ import annotations

from fractions import Fraction

from swarm.environments.scoring.expressions import Rationals, Unreadable, evaluate, parse

MAX_BITS = 4_096
"""Of a numerator and of a denominator, at every step."""
MAX_DECIMALS = 30
"""A result with more is shown as a fraction."""


class Calculator:
    """Implements `Tool`: `+ - * /`, `**` with whole exponents, and parentheses. `1/3` stays a fraction."""

    version = "calculator 1"

    def run(self, call: str) -> str:
        """The value: a whole number, an exact decimal or a fraction."""
        try:
            return _shown(evaluate(parse(call), _Bounded()))
        except ZeroDivisionError:
            return "error: division by zero"
        except Unreadable as error:
            return f"error: {error}"


class _Bounded(Rationals):
    """Exact arithmetic with powers, on numbers that fit."""

    def operate(self, symbol: str, left: Fraction, right: Fraction) -> Fraction:
        """The result; raises `Unreadable` for one that does not fit."""
        result = _power(left, right) if symbol == "**" else super().operate(symbol, left, right)
        _check_size(max(result.numerator.bit_length(), result.denominator.bit_length()))
        return result


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise Unreadable("an exponent must be a whole number")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length()) - 1
    _check_size(bits * abs(exponent.numerator))  # before it is computed
    return base**exponent.numerator


def _check_size(bits: int) -> None:
    if bits > MAX_BITS:
        raise Unreadable(f"a number must have at most {MAX_BITS} bits")


def _shown(value: Fraction) -> str:
    for decimals in range(MAX_DECIMALS + 1):
        if (value * 10**decimals).denominator == 1:
            return _decimal((value * 10**decimals).numerator, decimals)
    return str(value)


def _decimal(digits: int, decimals: int) -> str:
    text = str(abs(digits)).rjust(decimals + 1, "0")
    whole, part = text[: len(text) - decimals], text[len(text) - decimals :]
    return f"{'-' if digits < 0 else ''}{whole}{f'.{part}' if part else ''}"
