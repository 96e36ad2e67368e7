r"""Values of normalised LaTeX expressions, by our own bounded parser: nothing is evaluated as code.

Numbers, letters, `+ - * / ^`, implied products, fractions, roots, functions, absolute values, binomials, factorials.
"""

from __future__ import annotations

import cmath
import math
import re
from collections.abc import Callable

MAX_TOKENS = 200
MAX_VALUE = 1e300
"""Beyond it, and for nan, an expression has no value: differences and magnitudes of others do not overflow."""
_MAX_DEPTH = 40
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
}
_GREEK = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta kappa lambda mu nu xi rho sigma tau phi varphi chi psi "
    "omega infty"
)
_SYMBOLS = ("\\frac", "\\sqrt", "\\binom", "\\pi", "\\cdot", "\\times", "\\div", *"+-*/^(){}[]%!|_")
_LETTERS = frozenset(f"\\{name}" for name in _GREEK.split())
_COMMANDS = sorted((*_FUNCTIONS, *_LETTERS, *_SYMBOLS), key=len, reverse=True)
_TOKEN = re.compile(rf"\d*\.\d*\\overline\{{\d+\}}|\d+(?:\.\d*)?|\.\d+|[a-z]|{'|'.join(map(re.escape, _COMMANDS))}")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\{(\d+)\}")
_MULTIPLY, _DIVIDE = ("*", "\\cdot", "\\times"), ("/", "\\div")
_CLOSING = {"(": ")", "{": "}", "[": "]"}
_CONSTANTS = {"\\pi": complex(math.pi), "e": complex(math.e), "i": 1j}

Names = Callable[[str], complex]
"""The value of a letter."""


class Unreadable(Exception):
    """The text is not an expression of this module's grammar."""


def value(text: str, names: Names) -> complex | None:
    """The value of a normalised expression for these values of its letters; None if it has none, or no finite one."""
    try:
        found = _Expression(_tokens(text), names).value()
    except (Unreadable, ArithmeticError, ValueError):
        return None
    return found if max(abs(found.real), abs(found.imag)) < MAX_VALUE else None


def to_number(text: str) -> int | float | None:
    """The value of a normalised expression without letters; None for anything else, and if it is not real."""
    if text.isdecimal() and text.isascii() and len(text) <= 400:
        return int(text)
    found = value(text, _no_names)
    return found.real if found is not None and abs(found.imag) <= 1e-12 * abs(found.real) else None


def _no_names(name: str) -> complex:
    raise Unreadable(name)


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None or len(tokens) == MAX_TOKENS:
            raise Unreadable
        tokens.append(found[0])
        position = found.end()
    return tokens


class _Expression:
    """Recursive descent over tokens: sum > product > sign > power > factorial > atom."""

    def __init__(self, tokens: list[str], names: Names) -> None:
        self._tokens = tokens
        self._names = names
        self._next = 0
        self._depth = 0
        self._closing = [""]
        """What ends the innermost group."""

    def value(self) -> complex:
        total = self._sum()
        if self._peek():
            raise Unreadable
        return total

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self, wanted: str = "") -> str:
        token = self._peek()
        if not token or (wanted and token != wanted):
            raise Unreadable
        self._next += 1
        return token

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise Unreadable

    def _sum(self) -> complex:
        self._deeper()
        total = self._product()
        while self._peek() in ("+", "-"):
            total = total + self._product() if self._take() == "+" else total - self._product()
        self._depth -= 1
        return total

    def _product(self) -> complex:
        total = self._signed()
        while self._peek() not in ("", "+", "-", ")", "}", "]", self._closing[-1]):
            if self._peek() in _DIVIDE:
                self._take()
                total /= self._signed()
            else:  # explicit, or implied as in 2\pi
                if self._peek() in _MULTIPLY:
                    self._take()
                total *= self._signed()
        return total

    def _signed(self) -> complex:
        sign = 1
        while self._peek() in ("+", "-"):
            sign = -sign if self._take() == "-" else sign
        return sign * self._power()

    def _power(self) -> complex:
        base = self._atom()
        while self._peek() in ("%", "!"):
            base = base / 100 if self._take() == "%" else complex(math.factorial(_count(base)))
        if self._peek() != "^":
            return base
        self._take()
        return _raise(base, self._argument())

    def _argument(self) -> complex:
        """The argument of a command, or an exponent: a group in braces, or one digit or letter."""
        token = self._peek()
        if token == "{":
            return self._group()
        if not token[:1].isdigit():
            return self._atom()
        self._tokens[self._next : self._next + 1] = [token[0], *filter(None, [token[1:]])]
        return complex(int(self._take()))

    def _atom(self) -> complex:
        token = self._peek()
        if token in _CLOSING:
            return self._group()
        self._take()
        if token[0].isdigit() or token[0] == ".":
            return self._number(token)
        if token in _FUNCTIONS:
            return self._function(token)
        match token:
            case "\\frac":
                return self._argument() / self._argument()
            case "\\binom":
                return complex(math.comb(_count(self._argument()), _count(self._argument())))
            case "\\sqrt":
                degree = self._group() if self._peek() == "[" else complex(2)
                return _root(self._group() if self._peek() == "(" else self._argument(), degree)
            case "|":
                return complex(abs(self._until("|")))
        if token in _CONSTANTS:
            return _CONSTANTS[token]
        if token in _SYMBOLS:
            raise Unreadable(token)
        return self._names(token)

    def _number(self, token: str) -> complex:
        if (repeating := _REPEATING.fullmatch(token)) is not None:
            whole, start, period = repeating.groups()
            return complex((int(f"{whole}{start}" or 0) + int(period) / (10 ** len(period) - 1)) / 10 ** len(start))
        fraction = self._tokens[self._next : self._next + 7]
        is_mixed = fraction[::3] == ["\\frac", "}", "}"] and token.isdigit() and "".join(fraction[2::3]).isdigit()
        return complex(float(token)) + (self._atom() if is_mixed else 0)

    def _function(self, name: str) -> complex:
        """A function of a group, or of the product that follows: `\\sin^2 2x`."""
        self._deeper()
        power, base = complex(1), complex(math.e)
        while self._peek() in ("^", "_"):
            if self._take() == "^":
                power = self._argument()
            elif name == "\\log":
                base = self._argument()
            else:
                raise Unreadable(name)
        if self._peek() in _CLOSING:
            argument = self._group()
        else:
            argument = self._signed()
            while self._peek()[:1].isalnum() or self._peek() in _LETTERS or self._peek() == "\\pi":
                argument *= self._power()
        self._depth -= 1
        return _raise(_FUNCTIONS[name](argument) / cmath.log(base), power)

    def _group(self) -> complex:
        return self._until(_CLOSING[self._take()])

    def _until(self, closing: str) -> complex:
        self._closing.append(closing)
        inside = self._sum()
        self._closing.pop()
        self._take(closing)
        return inside


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


def _count(number: complex) -> int:
    """A small natural number. Raises `Unreadable`."""
    if number.imag or not number.real.is_integer() or not 0 <= number.real <= _MAX_FACTORIAL:
        raise Unreadable(str(number))
    return int(number.real)
