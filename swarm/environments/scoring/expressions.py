r"""Our own parser for short mathematical expressions: text becomes a bounded list of steps, never code.

One grammar with two token tables. `PLAIN` is what sympy prints and a calculator takes: numbers, names, `+ - * / **`,
signs, parentheses and functions of one argument. `LATEX` is that of final answers in the form of `notation.py`:
letters, implied products, fractions, roots, functions without parentheses, absolute values, binomials, factorials,
percentages. The steps are in postfix order, so that evaluation (exact arithmetic, complex values, polynomials,
derivatives, shapes) needs a stack and no recursion.
"""

from __future__ import annotations

import cmath
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Protocol, TypeVar

from msgspec import Struct

MAX_CHARACTERS = 4000
MAX_TOKENS = 1500
MAX_DEPTH = 30
"""Nesting depth of groups, powers and functions, for which the parser recurses."""
MAX_LATEX_TOKENS = 200
MAX_LATEX_DEPTH = 40
MAX_BITS = 4_096
"""Most bits of a numerator or denominator in exact arithmetic, at every step."""
T = TypeVar("T")
N = TypeVar("N", Fraction, complex)
_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_FUNCTION_NAMES = "arcsin arccos arctan sinh cosh tanh sin cos tan sec csc cot exp log ln"
_GREEK = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta kappa lambda mu nu xi rho sigma tau phi varphi chi psi "
    "omega infty pi"
)
_CLOSING = {"(": ")", "{": "}", "[": "]"}
_OPERANDS = frozenset({*_CLOSING, "|", "\\frac", "\\sqrt", "\\binom"})
"""Symbols that begin an operand."""
MAX_VALUE = 1e300
"""Beyond it, and for nan, an expression has no value: differences and magnitudes of others do not overflow."""
_MAX_FACTORIAL = 100
CONSTANTS = {"\\pi": complex(math.pi), "e": complex(math.e), "i": 1j}
Names = Callable[[str], complex]
"""The value of a letter."""


class Unreadable(ValueError):
    """The text is not an expression of this grammar."""


class Number(Struct, frozen=True):
    """Push an unsigned integer or decimal literal."""

    value: Fraction


class Name(Struct, frozen=True):
    """Push a variable or a constant."""

    name: str


class Call(Struct, frozen=True):
    """Replace the top of the stack by a function of it; of LaTeX also `sqrt`, `abs`, `!` and `%`."""

    function: str


class Operation(Struct, frozen=True):
    """Replace two operands by the result of one of `+ - * / **`.

    Of LaTeX also `root` (of the degree on top), `log` (to the base on top), `binom`, and `mixed`, the sum of a mixed
    number.
    """

    symbol: str


class Negation(Struct, frozen=True):
    """Negate the top of the stack."""


Step = Number | Name | Call | Operation | Negation


class Algebra(Protocol[T]):
    """Interprets the steps of an expression. Methods raise `Unreadable` for steps without a meaning."""

    def number(self, value: Fraction) -> T:
        """A literal."""

    def name(self, name: str) -> T:
        """A variable or constant."""

    def call(self, function: str, argument: T) -> T:
        """A function's value."""

    def operate(self, symbol: str, left: T, right: T) -> T:
        """The result of one of the operations."""


class Notation(Struct, frozen=True):
    """A token table, with its limits."""

    token: re.Pattern[str]
    """Groups name the kind: `number`, `repeating` decimals, `name` (may be called), `letter`, `function`, `symbol`."""
    synonyms: Mapping[str, str]
    """Other spellings of symbols."""
    implies_products: bool
    max_tokens: int
    max_depth: int


PLAIN = Notation(
    re.compile(
        r"[ \t]*(?:(?P<number>[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})"
        r"|(?P<name>[A-Za-z][A-Za-z0-9]{0,31})|(?P<symbol>\*\*|[-+*/()]))[ \t]*"
    ),
    {},
    False,
    MAX_TOKENS,
    MAX_DEPTH,
)


def _commands(names: str) -> str:
    return "|".join(rf"\\{name}" for name in sorted(names.split(), key=len, reverse=True))


LATEX = Notation(
    re.compile(
        r"(?P<repeating>\d*\.\d*\\overline\{\d+\})|(?P<number>\d+(?:\.\d*)?|\.\d+)"
        rf"|(?P<function>{_commands(_FUNCTION_NAMES)})|(?P<letter>[a-z]|{_commands(_GREEK)})"
        r"|(?P<symbol>\\frac|\\sqrt|\\binom|\\cdot|\\times|\\div|[-+*/^(){}\[\]%!|_])",
        re.ASCII,
    ),
    {"\\cdot": "*", "\\times": "*", "\\div": "/"},
    True,
    MAX_LATEX_TOKENS,
    MAX_LATEX_DEPTH,
)


def parse(text: str, notation: Notation = PLAIN) -> tuple[Step, ...]:
    """The steps of an expression. Raises `Unreadable` for any other text, and beyond the limits of length and depth."""
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"must be at most {MAX_CHARACTERS} characters, got {len(text)}")
    tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        match = notation.token.match(text, position)
        if match is None or len(tokens) == notation.max_tokens:
            raise Unreadable(f"character {position} starts no token, or one beyond {notation.max_tokens}")
        assert match.lastgroup is not None
        found = match[match.lastgroup]
        tokens.append((match.lastgroup, notation.synonyms.get(found, found)))
        position = match.end()
    return _Parser(tokens, notation).steps()


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


def arithmetic(symbol: str, left: N, right: N) -> N:
    """One of + - * /. Raises `Unreadable` for other operations, and `ZeroDivisionError`."""
    if symbol not in _ARITHMETIC:
        raise Unreadable(f"must be + - * /, got {symbol!r}")
    result: N = _ARITHMETIC[symbol](left, right)
    return result


class Rationals:
    """Implements `Algebra` for exact arithmetic with + - * /."""

    def number(self, value: Fraction) -> Fraction:
        """The literal itself."""
        return value

    def name(self, name: str) -> Fraction:
        """Raises `Unreadable`."""
        raise Unreadable(f"must be numbers alone, got {name!r}")

    def call(self, function: str, argument: Fraction) -> Fraction:
        """Raises `Unreadable`."""
        raise Unreadable(f"must be numbers alone, got {function!r}")

    def operate(self, symbol: str, left: Fraction, right: Fraction) -> Fraction:
        """Raises `Unreadable` for powers, and `ZeroDivisionError`."""
        return arithmetic(symbol, left, right)


class BoundedRationals(Rationals):
    """Implements `Algebra` for exact arithmetic with powers by whole numbers, on numbers of at most `MAX_BITS`."""

    def operate(self, symbol: str, left: Fraction, right: Fraction) -> Fraction:
        """Raises `Unreadable` for a result that does not fit, and `ZeroDivisionError`."""
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


class _Parser:
    """Recursive descent over tokens: sum > product > sign > power > atom."""

    def __init__(self, tokens: list[tuple[str, str]], notation: Notation) -> None:
        self._tokens = tokens
        self._notation = notation
        self._next = 0
        self._depth = 0
        self._steps: list[Step] = []
        self._closing = [""]
        """Closing symbols of the open groups."""

    def steps(self) -> tuple[Step, ...]:
        self._sum()
        if self._next < len(self._tokens):
            raise Unreadable(f"expected the end, got {self._tokens[self._next][1]!r}")
        return tuple(self._steps)

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._next] if self._next < len(self._tokens) else ("end", "the end")

    def _take(self, *symbols: str) -> str:
        """The next token if it is one of these symbols, else the empty string."""
        kind, text = self._peek()
        if kind != "symbol" or text not in symbols:
            return ""
        self._next += 1
        return text

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > self._notation.max_depth:
            raise Unreadable(f"must be at most {self._notation.max_depth} deep")

    def _sum(self) -> None:
        self._product()
        while symbol := self._take("+", "-"):
            self._product()
            self._steps.append(Operation(symbol))

    def _product(self) -> None:
        self._signed()
        while (symbol := self._take("*", "/")) or self._multiplies_without_a_sign():
            self._signed()
            self._steps.append(Operation(symbol or "*"))

    def _multiplies_without_a_sign(self) -> bool:
        """Whether an operand follows at once, as in `2\\pi`."""
        kind, text = self._peek()
        if not self._notation.implies_products or kind == "end" or text == self._closing[-1]:
            return False
        return kind != "symbol" or text in _OPERANDS

    def _signed(self) -> None:
        negative = False
        while symbol := self._take("+", "-"):
            negative ^= symbol == "-"
        self._power()
        if negative:
            self._steps.append(Negation())

    def _power(self) -> None:
        self._atom()
        while function := self._take("%", "!"):
            self._steps.append(Call(function))
        if self._take("**"):
            self._deeper()
            self._signed()
            self._depth -= 1
        elif self._take("^"):
            self._argument()
        else:
            return
        self._steps.append(Operation("**"))

    def _argument(self) -> None:
        """The argument of a command, or an exponent: a group in braces, or one digit or letter."""
        kind, text = self._peek()
        if kind != "number":
            self._atom()
            return
        if not text[0].isdigit():
            raise Unreadable(f"expected a digit, got {text!r}")
        self._tokens[self._next : self._next + 1] = [(kind, part) for part in (text[0], text[1:]) if part]
        self._next += 1
        self._steps.append(Number(Fraction(text[0])))

    def _atom(self) -> None:
        kind, text = self._peek()
        self._next += 1
        match kind:
            case "number":
                self._steps.append(Number(_fraction(text)))
                self._rest_of_mixed(text)
            case "repeating":
                self._steps.append(Number(repeating(text)))
            case "name" if self._take("("):
                self._inside(")")
                self._steps.append(Call(text))
            case "name" | "letter":
                self._steps.append(Name(text))
            case "function":
                self._function(text)
            case _:
                self._command(text)

    def _command(self, text: str) -> None:
        """A group, or a command with its arguments, after its first token."""
        if text in _CLOSING:
            self._inside(_CLOSING[text])
        elif text == "|":
            self._inside("|")
            self._steps.append(Call("abs"))
        elif text in ("\\frac", "\\binom"):
            self._argument()
            self._argument()
            self._steps.append(Operation("/" if text == "\\frac" else "binom"))
        elif text == "\\sqrt":
            degree = self._aside(lambda: self._inside("]")) if self._take("[") else []
            self._argument()
            self._steps += [*degree, Operation("root")] if degree else [Call("sqrt")]
        else:
            raise Unreadable(f"an operand is missing before {text!r}")

    def _rest_of_mixed(self, whole: str) -> None:
        """The fraction of a mixed number, `1\\frac{1}{2}`."""
        tokens = [text for _, text in self._tokens[self._next : self._next + 7]]
        if tokens[::3] == ["\\frac", "}", "}"] and whole.isdigit() and "".join(tokens[2::3]).isdigit():
            self._atom()
            self._steps.append(Operation("mixed"))

    def _function(self, name: str) -> None:
        """A function of a group, or of the product that follows: `\\sin^2 2x`."""
        self._deeper()
        power: list[Step] = []
        base: list[Step] = []
        while mark := self._take("^", "_"):
            if mark == "^":
                power = [*self._aside(self._argument), Operation("**")]
            elif name == "\\log":
                base = [*self._aside(self._argument), Operation("log")]
            else:
                raise Unreadable(f"{name} has no index")
        if self._peek()[1] in _CLOSING:
            self._atom()
        else:
            self._signed()
            while self._peek()[0] in ("number", "repeating", "letter"):
                self._power()
                self._steps.append(Operation("*"))
        self._depth -= 1
        self._steps += [*(base or [Call(name)]), *power]

    def _aside(self, read: Callable[[], None]) -> list[Step]:
        """The steps that `read` adds, taken out because they come later."""
        kept, self._steps = self._steps, []
        read()
        kept, self._steps = self._steps, kept
        return kept

    def _inside(self, closing: str) -> None:
        self._deeper()
        self._closing.append(closing)
        self._sum()
        self._closing.pop()
        if not self._take(closing):
            raise Unreadable("a parenthesis is not closed")
        self._depth -= 1


def _fraction(text: str) -> Fraction:
    if not text.strip("."):
        raise Unreadable(f"not a number: {text!r}")
    return Fraction(text)


def repeating(text: str) -> Fraction:
    """The value of `0.1\\overline{6}`."""
    whole, _, rest = text.partition(".")
    start, _, period = rest.removesuffix("}").partition("\\overline{")
    before_period = Fraction(int(f"{whole}{start}" or 0))
    return (before_period + Fraction(int(period), 10 ** len(period) - 1)) / Fraction(10 ** len(start))


FUNCTIONS: dict[str, tuple[Callable[[complex], complex], Callable[[complex], complex]]] = {
    "exp": (cmath.exp, cmath.exp),
    "log": (cmath.log, lambda u: 1 / u),
    "ln": (cmath.log, lambda u: 1 / u),
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
"""Functions with their derivatives, by name in `PLAIN`; all are analytic, so that complex points serve as well."""
_OF_LATEX: dict[str, Callable[[complex], complex]] = {
    **{f"\\{name}": FUNCTIONS[name.replace("arc", "a")][0] for name in _FUNCTION_NAMES.split()},
    "sqrt": cmath.sqrt,
    "abs": lambda x: complex(abs(x)),
    "%": lambda x: x / 100,
    "!": lambda x: complex(math.factorial(_count(x))),
}


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
    """Adds the rational functions of LaTeX."""

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
        return _OF_LATEX[function](argument)

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
