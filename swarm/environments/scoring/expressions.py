"""Our own parser for short mathematical expressions: text becomes a bounded list of steps, never code.

Numbers, names, `+ - * / **`, signs, parentheses and functions of one argument, as sympy prints them. The steps are in
postfix order, so that evaluation (exact arithmetic, polynomials, derivatives) needs a stack and no recursion.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Protocol, TypeVar

from msgspec import Struct

MAX_CHARACTERS = 4000
MAX_TOKENS = 1500
MAX_DEPTH = 30
"""Nesting depth of parentheses and powers, for which the parser recurses."""

_TOKEN = re.compile(
    r"[ \t]*(?:(?P<number>[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})"
    r"|(?P<name>[A-Za-z][A-Za-z0-9]{0,31})|(?P<symbol>\*\*|[-+*/()]))[ \t]*"
)


class Unreadable(ValueError):
    """The text is not an expression of this grammar."""


class Number(Struct, frozen=True):
    """Push an unsigned integer or decimal literal."""

    value: Fraction


class Name(Struct, frozen=True):
    """Push a variable or a constant."""

    name: str


class Call(Struct, frozen=True):
    """Replace the top of the stack by a function of it."""

    function: str


class Operation(Struct, frozen=True):
    """Replace two operands by the result of one of `+ - * / **`."""

    symbol: str


class Negation(Struct, frozen=True):
    """Negate the top of the stack."""


Step = Number | Name | Call | Operation | Negation
T = TypeVar("T")


class Algebra(Protocol[T]):
    """Interprets the steps of an expression. Methods raise `Unreadable` for steps without a meaning."""

    def number(self, value: Fraction) -> T:
        """A literal."""
        ...

    def name(self, name: str) -> T:
        """A variable or constant."""
        ...

    def call(self, function: str, argument: T) -> T:
        """A function's value."""
        ...

    def operate(self, symbol: str, left: T, right: T) -> T:
        """The result of one of `+ - * / **`."""
        ...


def parse(text: str) -> tuple[Step, ...]:
    """The steps of an expression. Raises `Unreadable` for any other text, and beyond the limits of length and depth."""
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"must be at most {MAX_CHARACTERS} characters, got {len(text)}")
    tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or len(tokens) == MAX_TOKENS:
            raise Unreadable(f"character {position} starts no token, or one beyond {MAX_TOKENS}")
        assert match.lastgroup is not None
        tokens.append((match.lastgroup, match[match.lastgroup]))
        position = match.end()
    return _Parser(tokens).steps()


def evaluate(steps: Sequence[Step], algebra: Algebra[T]) -> T:
    """The value of an expression in an algebra. Raises what the algebra raises."""
    stack: list[T] = []
    for step in steps:
        match step:
            case Number(value):
                stack.append(algebra.number(value))
            case Name(name):
                stack.append(algebra.name(name))
            case Call(function):
                stack.append(algebra.call(function, stack.pop()))
            case Operation(symbol):
                right, left = stack.pop(), stack.pop()
                stack.append(algebra.operate(symbol, left, right))
            case Negation():
                stack.append(algebra.operate("-", algebra.number(Fraction(0)), stack.pop()))
    return stack[0]


class Rationals:
    """Implements `Algebra` for exact arithmetic with + - * /."""

    def number(self, value: Fraction) -> Fraction:
        """As it is."""
        return value

    def name(self, name: str) -> Fraction:
        """Raises `Unreadable`."""
        raise Unreadable(f"must be numbers alone, got {name!r}")

    def call(self, function: str, argument: Fraction) -> Fraction:
        """Raises `Unreadable`."""
        raise Unreadable(f"must be numbers alone, got {function!r}")

    def operate(self, symbol: str, left: Fraction, right: Fraction) -> Fraction:
        """Raises `Unreadable` for powers, and `ZeroDivisionError`."""
        match symbol:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
            case "/":
                return left / right
        raise Unreadable(f"must be + - * /, got {symbol!r}")


class _Parser:
    """Recursive descent over tokens: sum > product > sign > power > atom."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0
        self._steps: list[Step] = []

    def steps(self) -> tuple[Step, ...]:
        self._sum()
        if self._next < len(self._tokens):
            raise Unreadable(f"expected the end, got {self._tokens[self._next][1]!r}")
        return tuple(self._steps)

    def _take(self, *symbols: str) -> str:
        """The next token if it is one of these symbols, else the empty string."""
        if self._next < len(self._tokens) and self._tokens[self._next] in [("symbol", symbol) for symbol in symbols]:
            self._next += 1
            return self._tokens[self._next - 1][1]
        return ""

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable(f"must be at most {MAX_DEPTH} deep")

    def _sum(self) -> None:
        self._product()
        while symbol := self._take("+", "-"):
            self._product()
            self._steps.append(Operation(symbol))

    def _product(self) -> None:
        self._signed()
        while symbol := self._take("*", "/"):
            self._signed()
            self._steps.append(Operation(symbol))

    def _signed(self) -> None:
        negative = False
        while symbol := self._take("+", "-"):
            negative ^= symbol == "-"
        self._power()
        if negative:
            self._steps.append(Negation())

    def _power(self) -> None:
        self._atom()
        if self._take("**"):
            self._deeper()
            self._signed()
            self._depth -= 1
            self._steps.append(Operation("**"))

    def _atom(self) -> None:
        if self._take("("):
            self._inside()
            return
        kind, text = self._tokens[self._next] if self._next < len(self._tokens) else ("symbol", "the end")
        if kind == "symbol":
            raise Unreadable(f"an operand is missing before {text!r}")
        self._next += 1
        if kind == "number":
            self._steps.append(Number(Fraction(text)))
        elif self._take("("):
            self._inside()
            self._steps.append(Call(text))
        else:
            self._steps.append(Name(text))

    def _inside(self) -> None:
        self._deeper()
        self._sum()
        if not self._take(")"):
            raise Unreadable("a parenthesis is not closed")
        self._depth -= 1
