"""A calculator: exact arithmetic on numbers of bounded size, by our own parser."""

from __future__ import annotations

from fractions import Fraction

from swarm.environments.scoring.expressions import BoundedRationals, Unreadable, evaluate, parse
from swarm.environments.tools.base import Tool
from swarm.environments.tools.schema import text_argument

MAX_DECIMALS = 30
"""A result with more is shown as a fraction."""


class Calculator(Tool):
    """`+ - * /`, `**` with whole exponents, and parentheses. `1/3` stays a fraction."""

    request = (
        "You may use a calculator before you answer: a message with <tool>12 * (3.5 + 4) / 7</tool> is answered with "
        "the result."
    )
    description = "Works out an expression of numbers exactly."
    parameters = text_argument("Numbers with + - * / **, whole exponents, and parentheses.", "expression")
    version = "calculator 1"

    def run(self, call: str) -> str:
        """The value: a whole number, an exact decimal or a fraction."""
        try:
            return _shown(evaluate(parse(call), BoundedRationals()))
        except ZeroDivisionError:
            return "error: division by zero"
        except Unreadable as error:
            return f"error: {error}"


def _shown(value: Fraction) -> str:
    for decimals in range(MAX_DECIMALS + 1):
        if (value * 10**decimals).denominator == 1:
            return _decimal((value * 10**decimals).numerator, decimals)
    return str(value)


def _decimal(digits: int, decimals: int) -> str:
    text = str(abs(digits)).rjust(decimals + 1, "0")
    whole, part = text[: len(text) - decimals], text[len(text) - decimals :]
    return f"{'-' if digits < 0 else ''}{whole}{f'.{part}' if part else ''}"
