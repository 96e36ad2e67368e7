r"""Numbers as they are written: `1,234.50`, `-3/4`, `1\frac{1}{2}`, `50%`, `2e5`, `3 \times 10^5`. In linear time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from swarm.environments.scoring.expressions import repeating
from swarm.environments.scoring.notation import (
    SCALES,
    agree,
    decimal_points,
    is_enclosed,
    plain_characters,
    plain_digits,
    plain_text,
    unit_at,
)

RELATIVE_TOLERANCE = 1e-6
"""Tolerance of numbers that are not whole, which may be rounded."""
MOST_FROM_WHOLE = 1e-3
"""Largest difference from a whole number, however large it is."""
MAX_DIGITS = 400
"""Longest whole number; longer ones are read as floats."""

Kind = Literal["whole", "decimal", "fraction", "mixed", "scientific", "power"]

_FRACTION = re.compile(
    r"(?P<whole>(?<=\d)\s{0,2})?\\[dtc]?frac\s*(?:\{\s*(?P<top>-?[\d.]+)\s*\}\s*\{\s*(?P<bottom>-?[\d.]+)\s*\}"
    r"|(?P<short>\d)\s*(?:(?P<below>\d)|\{\s*(?P<under>\d+)\s*\}))"
)
_TEN_TO = r"\s*(?:×|·|\*|x|X|\\times|\\cdot)\s*10\s*(?:\^|\*\*)\s*(?:\{\s*)?(?P<power>[-+]?\d{1,4})\}?"
_NUMBER = re.compile(
    r"(?P<sign>(?<![^\W_])(?<![).])[-+](?!\s)|(?:\A|(?<=[=({$])|(?<=[=({$]\s))[-+]\s)?[$€£]?\s?(?P<sign2>(?<=[$€£])-)?"
    r"(?P<top>\d+(?:\.\d+)?|\.\d+)"
    rf"(?:[eE](?P<exponent>[-+]?\d{{1,4}})(?!\w)|{_TEN_TO}"
    r"|\s*(?:\^|\*\*)\s*(?:\{\s*)?(?P<raised>-?\d{1,4})\}?"
    r"|(?:(?P<mixed>\s+\d+)(?=\s*/\s*\d))?\s*/\s*(?P<bottom>\d+(?:\.\d+)?))?"
    r"(?P<percent>\s*(?:\$\s*)?(?:\\?%|(?:percent|per cent|pct)\b))?"
    rf"(?:\s+(?P<scale>{'|'.join(SCALES)})\b)?"
)
_NEGATIVE = re.compile(r"\bnegative\s+(?=[\d.$])", re.IGNORECASE)
_POWER_OF_NEGATIVE = re.compile(r"\(-(\d{1,9})\)\s?(?:\^|\*\*)\s?\{?(\d{1,2})(?!\d)\}?")
_GLUED = re.compile(r"(?<![A-Za-z\\])[A-Za-z]+\Z")
_SQUARED = re.compile(r"(?<![A-Za-z])(?:[kcmd]?m|ft|in|yd|mi)\Z")
"""Units whose exponent may be written as a digit: `25 cm2`."""
_EXPONENT = re.compile(r"\^\{?\s*[-+]?\Z")
"""Text before an exponent, such as that of a unit, in the four characters before a number."""
_REPEATING = re.compile(r"-?\d*\.\d*\\overline\{\d+\}")
_IN_BRACKETS = re.compile(r"\A([-+]?)\((\d+)\)/\((\d+)\)\Z")
"""A fraction of numbers in brackets."""
_SAME = {"\\$": "$", "\\,": "", "\\ ": " ", "~": " "}


class Written(Struct, frozen=True):
    """A number with the form in which it is written."""

    kind: Kind
    value: int | float
    """Value; of a percentage, the number before the sign."""
    parts: tuple[int | float, ...] = ()
    """Numerator and denominator of a fraction; base and exponent of scientific notation and powers."""
    is_percentage: bool = False
    unit: str = ""
    """Behind it, if it is a known one."""
    scale: int = 1
    """Factor of a word such as million, which is not part of the value."""

    @property
    def share(self) -> float:
        """The value, a percentage as the part of 1 that it means. Raises `OverflowError`."""
        return self.value / 100 if self.is_percentage else self.value

    @property
    def is_of_whole_numbers(self) -> bool:
        """Whether a fraction has a whole numerator and denominator."""
        return all(isinstance(part, int) for part in self.parts)

    @property
    def is_reduced(self) -> bool:
        """Whether it is no fraction, or one in lowest terms."""
        if self.kind not in ("fraction", "mixed"):
            return True
        top, bottom = self.parts
        return isinstance(top, int) and isinstance(bottom, int) and bottom > 1 and math.gcd(top, bottom) == 1


Form = tuple[Kind, bool, int | float, tuple[int | float, ...]]


def form_of(number: Written) -> Form:
    """Equal for numbers that are written in the same way, apart from separators and final zeros."""
    parts = number.parts if number.kind in ("fraction", "power") else ()
    return number.kind, number.is_percentage, number.value, parts


def same_number(one: float, other: float) -> bool:
    """Integers exactly, others within a relative 1e-6, of an integer also within 1e-3."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    try:
        if (isinstance(one, int) or isinstance(other, int)) and abs(one - other) > MOST_FROM_WHOLE:
            return False
        return math.isclose(one, other, rel_tol=RELATIVE_TOLERANCE)
    except OverflowError:  # an integer beyond the range of floats
        return False


def same_written(given: Written, wanted: Written) -> bool:
    """Whether two are the same number.

    A percentage equals its bare number, because the sign is often omitted. It equals its share only if a wanted number
    without the sign can be one: 1200% is not 12.
    """
    if not agree(given.unit, wanted.unit):
        return False
    if same_number(given.value * given.scale, wanted.value * wanted.scale):
        return True
    if given.scale != wanted.scale or given.is_percentage == wanted.is_percentage:
        return False
    if given.is_percentage and isinstance(wanted.value, int) and abs(wanted.value) > 1:
        return False
    try:
        return same_number(given.share, wanted.share)
    except OverflowError:  # an integer beyond the range of floats
        return False


def numbers(text: str) -> Iterator[re.Match[str]]:
    """The numbers in a text, as matches with the groups of `_NUMBER`; digits in words, exponents of units are none."""
    for found in _NUMBER.finditer(_plain(text)):
        before = found.string[max(0, found.start() - 16) : found.start()]
        first, behind = found.start("top"), found.string[found.end() : found.end() + 1]
        is_in_word = behind.isalpha() and _GLUED.search(found.string, max(0, first - 16), first) is not None
        is_square = found[0] in ("2", "3") and _SQUARED.search(before) is not None
        if _EXPONENT.search(before[-4:]) is None and not is_in_word and not is_square:
            yield found


def all_written(text: str) -> Iterator[Written]:
    """The numbers in a text that are finite."""
    return (written for found in numbers(text) if (written := _written(found)) is not None)


def last_written(text: str) -> Written | None:
    """The last number in a text; None when there is none or it is not finite."""
    found = None
    for found in numbers(text):  # noqa: B007
        pass
    return None if found is None else _written(found)


def read_number(text: str) -> Written | None:
    """The number that a normalised text is, and nothing else but brackets around it; None for any other text."""
    text = _IN_BRACKETS.sub(r"\1\2/\3", text)
    while is_enclosed(text):
        text = text[1:-1]
    if text[:1] in ("+", "-") and is_enclosed(text[1:]) and text[2] not in "+-":
        text = f"{text[0]}{text[2:-1]}"
    if _REPEATING.fullmatch(text) is not None:
        sign = -1 if text.startswith("-") else 1
        return Written("decimal", sign * float(repeating(text.removeprefix("-"))))
    found = _NUMBER.fullmatch(_plain(text))
    return None if found is None else _written(found)


def plain_number(found: re.Match[str]) -> str:
    """A match of `numbers` in plain notation, its digits as they are written."""
    sign = "-" if _is_negative(found) else ""
    exponent = found["exponent"] or found["power"]
    ending = f"e{exponent}" if exponent else f"^{found['raised']}" if found["raised"] else ""
    fraction = f"{' ' + found['mixed'].strip() if found['mixed'] else ''}/{found['bottom']}" if found["bottom"] else ""
    scale = f" {found['scale']}" if found["scale"] else ""
    return f"{sign}{found['top']}{ending}{fraction}{'%' if found['percent'] else ''}{scale}"


def _plain(text: str) -> str:
    """A text with fractions as `1/2`, and one notation of signs and separators."""
    text = decimal_points(plain_digits(plain_text(plain_characters(text))))
    for form, plain in _SAME.items():
        text = text.replace(form, plain)
    text = _POWER_OF_NEGATIVE.sub(lambda found: f"{'-' * (int(found[2]) % 2)}{found[1]}^{found[2]}", text)
    text = _NEGATIVE.sub("-", text)
    return _FRACTION.sub(_as_quotient, text)


def _as_quotient(found: re.Match[str]) -> str:
    separator = " " if found["whole"] is not None else ""
    top, bottom = found["top"] or found["short"], found["bottom"] or found["below"] or found["under"]
    if bottom.startswith("-"):
        top, bottom = (top[1:] if top.startswith("-") else f"-{top}"), bottom[1:]
    return f"{separator}{top}/{bottom}"


def _is_negative(found: re.Match[str]) -> bool:
    return "-" in (found["sign"] or "") + (found["sign2"] or "")


def _written(found: re.Match[str]) -> Written | None:
    kind, value, parts = _read(found)
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        value = int(value) if value.is_integer() and abs(value) < 2**53 else value
    value = -value if _is_negative(found) else value
    unit = unit_at(found.string, found.end()) if found["percent"] is None else None
    scale = 10 ** SCALES[found["scale"]] if found["scale"] is not None else 1
    return Written(kind, value, parts, found["percent"] is not None, "" if unit is None else unit[0], scale)


def _read(found: re.Match[str]) -> tuple[Kind, int | float, tuple[int | float, ...]]:
    """Kind, absolute value and parts."""
    top = found["top"]
    first = _literal(top)
    exponent = found["exponent"] or found["power"]
    if exponent is not None:
        return "scientific", float(f"{top}e{exponent}"), (first, int(exponent))
    if found["raised"] is not None:
        raised = int(found["raised"])
        return (
            ("scientific", _power(10, raised), (1, raised))
            if first == 10
            else ("power", _power(first, raised), (first, raised))
        )
    if found["bottom"] is not None:
        bottom = _literal(found["bottom"])
        if found["mixed"] is not None:
            part = _literal(found["mixed"].strip())
            return "mixed", first + _quotient(part, bottom), (part, bottom)
        return "fraction", _quotient(first, bottom), (first, bottom)
    is_whole = isinstance(first, int) or first.is_integer()
    return "whole" if is_whole else "decimal", first, ()


def _literal(digits: str) -> int | float:
    return int(digits) if digits.isdigit() and len(digits) <= MAX_DIGITS else float(digits)


def _quotient(top: float, bottom: float) -> float:
    try:
        return float(top) / float(bottom) if bottom else math.nan
    except OverflowError:
        return math.nan


def _power(base: float, exponent: int) -> int | float:
    if isinstance(base, int) and exponent >= 0 and base.bit_length() * exponent <= 4 * MAX_DIGITS:
        return int(base**exponent)
    try:
        return float(base) ** exponent
    except (OverflowError, ZeroDivisionError):
        return math.nan
