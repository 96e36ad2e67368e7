"""Shapes of expressions: how they are composed, whatever the order of terms and factors, and the work left in them.

The expressions `x^2-9` and `(x-3)(x+3)` have the same values and different shapes; `x^2-9` and `-9+x^2` have the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import reduce
from typing import Literal

from msgspec import Struct

from swarm.environments.scoring.expressions import Complexes, Unreadable, evaluate, no_names, read

_NEVER = frozenset[str]()
_FAMILIES = {
    "sqrt": "roots", "root": "roots", "\\log": "logarithms", "\\ln": "logarithms", "log": "logarithms",
    "!": "counts", "binom": "counts",
}  # fmt: skip
"""Functions that replace each other; all others make one family, too."""
_MULTIPLE_OF = 5_040
"""Values of functions that are multiples of 1 / 5040 are rational: they could be written as a number."""


class Shape(Struct, frozen=True):
    """Shape of an expression or of a part of it."""

    kind: Literal["number", "name", "sum", "product", "power", "inverse", "call"]
    key: str
    """Equal for equal shapes: the parts in a canonical order."""
    rest: str
    """The key without a numerical factor; empty for numbers."""
    parts: tuple[Shape, ...] = ()
    """Terms, factors without numbers, a power's base, what is inverted, or an argument."""
    tops: tuple[Fraction, ...] = ()
    """Numerical factors, positive and not 1; the first one of a negative product is negative."""
    bottoms: tuple[Fraction, ...] = ()
    """Numerical divisors, positive and not 1."""
    work: frozenset[str] = _NEVER
    """Remaining or possible simplifications: see `_product`, `_sum`, `Shapes`."""
    value: complex | None = None
    """Value of a constant expression."""


def shape_of(text: str) -> Shape | None:
    """The shape of a normalised expression; None for any other text."""
    steps = read(text)
    try:
        return None if steps is None else evaluate(steps, Shapes())
    except (ArithmeticError, ValueError):  # Unreadable is one
        return None


def spread(shape: Shape) -> Shape:
    """A sum over a number as a sum of quotients; any other shape as it is."""
    match shape:
        case Shape(kind="product", parts=(Shape(kind="sum") as total,)) if shape.bottoms:
            quotient = _product(shape.tops, shape.bottoms, [])
            return _sum([_times(quotient, term) for term in total.parts])
    return shape


def is_made_of(shape: Shape, known: Callable[[Shape], bool]) -> bool:
    """Whether it is an operation that is not carried out on parts that are all known.

    Sums, functions and powers of numbers, and products, quotients, functions and powers of sums.
    """
    operands = [_operand(part) for part in (shape.parts[:1] if shape.kind == "power" else shape.parts)]
    kinds = {each.kind for each in operands}
    is_of_numbers = shape.value is not None and kinds == {"number"}
    return (shape.kind == "sum" or "sum" in kinds or is_of_numbers) and all(known(each) for each in operands)


def is_rational(value: complex | None) -> bool:
    """Whether a constant is a multiple of 1 / 5040, as far as floats can say."""
    if value is None or abs(value.imag) > 1e-12 or not abs(value.real) < 1e9:
        return False
    scaled = value.real * _MULTIPLE_OF
    return abs(scaled - round(scaled)) < 1e-7


class Shapes:
    """Implements `Algebra` for shapes."""

    def number(self, value: Fraction) -> Shape:
        """A literal."""
        return _product([value], [], [])

    def name(self, name: str) -> Shape:
        """A letter or constant."""
        return Shape("name", name, name, value=_value(lambda: Complexes(no_names).name(name)))

    def call(self, function: str, argument: Shape) -> Shape:
        """A function: of a constant it is work unless the reference has one of its family, too."""
        match function:
            case "%":
                return _times(argument, _product([], [Fraction(100)], []))
            case "\\exp":
                return _power(self.name("e"), argument)
        return _call(function, argument)

    def operate(self, symbol: str, left: Shape, right: Shape) -> Shape:
        """Sums and products without regard to order; powers and others as they are."""
        match symbol:
            case "+" | "mixed":
                return _number_of(left, right) if symbol == "mixed" else _sum([*_terms(left), *_terms(right)])
            case "-":
                return _sum([*_terms(left), *_terms(_negative(right))])
            case "*":
                return _times(left, right)
            case "/":
                return _times(left, _inverse(right))
            case "**":
                return _power(left, right)
        return _call(symbol, left, right)


def _sum(terms: list[Shape]) -> Shape:
    """`arithmetic` is left with several numbers, `like terms` with multiples of the same."""
    terms = [term for term in terms if term.key != "0"] or terms[:1]
    if len(terms) == 1:
        return terms[0]
    key = f"({' + '.join(sorted(term.key for term in terms))})"
    counts = Counter(term.rest for term in terms)
    work = _work(terms) | {"arithmetic" if not rest else "like terms" for rest, count in counts.items() if count > 1}
    return Shape("sum", key, key, tuple(terms), work=work, value=_total([term.value for term in terms]))


def _product(tops: Iterable[Fraction], bottoms: Iterable[Fraction], factors: Iterable[Shape]) -> Shape:
    """`arithmetic` is left with several numbers, `like factors` with the same twice, `products` with several sums."""
    tops, bottoms, factors = list(tops), list(bottoms), list(factors)
    negative = sum(number < 0 for number in (*tops, *bottoms)) % 2 == 1
    for i, factor in enumerate(factors):
        flipped = _flipped(factor)
        if flipped is not None:
            factors[i], negative = flipped, not negative
    tops, bottoms = ([abs(number) for number in each if abs(number) != 1] for each in (tops, bottoms))
    coefficient, work = _coefficient(tops, bottoms)
    if negative:
        coefficient, tops = f"-{coefficient}", [-tops[0], *tops[1:]] if tops else [Fraction(-1)]
    rest = "*".join(sorted(factor.key for factor in factors))
    if not factors and not work:
        number = Fraction(coefficient)
        return Shape("number", coefficient, "", (), tuple(tops), tuple(bottoms), value=complex(number))
    if len(factors) == 1 and coefficient == "1":
        return factors[0]
    counts = Counter(_base(factor) for factor in factors)
    if any(count > 1 for count in counts.values()):
        work |= {"like factors"}
    if sum(factor.kind in ("call", "inverse") and "roots" in factor.work for factor in factors) > 1:
        work |= {"products of roots"}
    if sum(factor.kind == "sum" for factor in factors) > 1:
        work |= {"products"}
    value = _value(lambda: reduce(lambda a, b: a * b, [_known(factor) for factor in factors], complex(1)))
    scale = complex(math.prod(tops) / math.prod(bottoms)) if all(bottoms) else None
    return Shape(
        "product",
        f"{coefficient}*{rest}" if rest else coefficient,
        rest,
        tuple(factors),
        tuple(tops),
        tuple(bottoms),
        frozenset(work) | _work(factors),
        None if value is None or scale is None else value * scale,
    )


def _coefficient(tops: list[Fraction], bottoms: list[Fraction]) -> tuple[str, set[str]]:
    """The numbers of a product as they are written, and whether there is arithmetic left in them."""
    top, bottom = math.prod(tops, start=Fraction(1)), math.prod(bottoms, start=Fraction(1))
    is_whole = all(number.denominator == 1 for number in (*tops, *bottoms))
    is_reduced = is_whole and math.gcd(top.numerator, bottom.numerator) == 1
    if len(tops) <= 1 and len(bottoms) <= 1 and (not bottoms or is_reduced):
        return str(top / bottom), set()
    return f"{'*'.join(map(str, sorted(tops)))}/{'/'.join(map(str, sorted(bottoms)))}", {"arithmetic"}


def _power(base: Shape, exponent: Shape) -> Shape:
    """The work is `products` for a power of a sum, `arithmetic` for numbers with a rational value."""
    work = _work((base, exponent))
    value = _value(lambda: Complexes(no_names).operate("**", _known(base), _known(exponent)))
    is_whole = exponent.kind == "number" and "/" not in exponent.key
    if is_rational(value) or (base.kind == "number" and is_whole):
        work |= {"arithmetic"}
    elif base.kind == exponent.kind == "number":
        work |= {"roots"}
    elif is_whole and base.kind in ("sum", "power"):
        work |= {"products" if base.kind == "sum" else "like factors"}
    key = f"{base.key}^({exponent.key})"
    return Shape("power", key, key, (base, exponent), work=work, value=value)


def _call(function: str, *arguments: Shape) -> Shape:
    """The work is a family for constants, and `arithmetic` if the value is rational."""
    algebra = Complexes(no_names)
    known = [argument.value for argument in arguments]
    value = None
    if len(arguments) == 2:
        value = _value(lambda: algebra.operate(function, _known(arguments[0]), _known(arguments[1])))
    else:
        value = _value(lambda: algebra.call(function, _known(arguments[0])))
    work = _work(arguments)
    if all(each is not None for each in known):
        work |= {_FAMILIES.get(function, "other functions")} | ({"arithmetic"} if is_rational(value) else set())
    key = f"{function}({', '.join(argument.key for argument in arguments)})"
    return Shape("call", key, key, arguments, work=work, value=value)


def _operand(part: Shape) -> Shape:
    """The base of a power or the argument of an inverse, else the part itself."""
    part = part.parts[0] if part.kind == "inverse" else part
    return part.parts[0] if part.kind == "power" else part


def _terms(shape: Shape) -> tuple[Shape, ...]:
    return shape.parts if shape.kind == "sum" else (shape,)


def _times(left: Shape, right: Shape) -> Shape:
    factors = [*_factors(left), *_factors(right)]
    return _product([*left.tops, *right.tops], [*left.bottoms, *right.bottoms], factors)


def _factors(shape: Shape) -> tuple[Shape, ...]:
    return shape.parts if shape.kind in ("number", "product") else (shape,)


def _negative(shape: Shape) -> Shape:
    return _times(_product([Fraction(-1)], [], []), shape)


def _number_of(whole: Shape, part: Shape) -> Shape:
    """A mixed number."""
    return _product([Fraction(whole.key) + Fraction(part.key)], [], [])


def _inverse(shape: Shape) -> Shape:
    """A divisor: its numbers are divided by, its factors inverted. Sums with letters are left as `quotients`."""
    if shape.kind in ("number", "product"):
        if shape.key == "0":
            raise ZeroDivisionError
        return _product(shape.bottoms, shape.tops, [_inverse(factor) for factor in shape.parts])
    if shape.kind == "inverse":
        return shape.parts[0]
    work = shape.work | ({"quotients"} if shape.kind == "sum" and shape.value is None else set())
    key = f"/{shape.key}"
    return Shape("inverse", key, key, (shape,), work=work, value=_value(lambda: 1 / _known(shape)))


def _flipped(factor: Shape) -> Shape | None:
    """A sum with the opposite sign, or its inverse, if its first term is negative; None if it need not be flipped."""
    if factor.kind == "inverse":
        flipped = _flipped(factor.parts[0])
        return None if flipped is None else _inverse(flipped)
    if factor.kind != "sum" or not min(factor.parts, key=lambda term: term.key.lstrip("-")).key.startswith("-"):
        return None
    return _sum([_negative(term) for term in factor.parts])


def _base(factor: Shape) -> str:
    inner = factor.parts[0] if factor.kind == "inverse" else factor
    return inner.parts[0].key if inner.kind == "power" else inner.key


def _work(parts: Iterable[Shape]) -> frozenset[str]:
    return frozenset[str]().union(*(part.work for part in parts))


def _known(shape: Shape) -> complex:
    """The value of a constant. Raises `Unreadable`."""
    if shape.value is None:
        raise Unreadable(shape.key)
    return shape.value


def _value(compute: Callable[[], complex]) -> complex | None:
    try:
        return compute()
    except (ArithmeticError, ValueError):  # Unreadable is one
        return None


def _total(values: Iterable[complex | None]) -> complex | None:
    known = list(values)
    return None if any(each is None for each in known) else sum(each for each in known if each is not None)
