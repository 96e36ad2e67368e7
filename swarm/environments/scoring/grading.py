"""Compares a completion with a reference answer: as text, as a number, or as boxed mathematics.

Pure functions on untrusted text: nothing is evaluated as code, every pattern runs in linear time on any input, and
unreadable text is a wrong answer, never an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from swarm.environments.answering import MatchRule
from swarm.environments.scoring.latex import boxed_content
from swarm.environments.scoring.mathematics import equivalent, same_number

_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*(-?[\d.]+)\s*\}\s*\{\s*([\d.]+)\s*\}")
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w).])[-+]\s?)?[$€£]?\s?(?P<sign2>(?<=[$€£])-)?"
    r"(?P<top>(?:\d{1,3}(?:,\d{3}){1,20}(?![\d,])|\d+)(?:\.\d+)?|\.\d+)"
    r"(?:[eE](?P<exponent>[-+]?\d{1,4})(?!\w)"
    r"|\s*(?:×|\*|x|\\times|\\cdot)\s*10\s*(?:\^|\*\*)\s*\{?(?P<power>[-+]?\d{1,4})\}?"
    r"|\s*/\s*(?P<bottom>\d+(?:\.\d+)?))?"
    r"(?P<percent>\s*\\?%)?"
)


def matches(rule: MatchRule, answer: str, reference: str) -> bool:
    """Whether an answer matches the reference under the rule."""
    return {"exact": exact, "numeric": numeric, "boxed": equivalent}[rule](answer, reference)


def exact(answer: str, reference: str) -> bool:
    """Equal, ignoring case and white space."""
    return " ".join(answer.split()).casefold() == " ".join(reference.split()).casefold()


def numeric(answer: str, reference: str) -> bool:
    """The last numbers of both are equal: integers exactly, others within a relative 1e-6.

    A percentage equals its fraction and, because the sign is often omitted, its bare number.
    """
    given, wanted = last_number(answer), last_number(reference)
    if given is None or wanted is None:
        return False
    if same_number(given[0], wanted[0]):
        return True
    if given[1] == wanted[1]:
        return False
    percentage, number = (given[0], wanted[0]) if given[1] else (wanted[0], given[0])
    try:
        return same_number(percentage / 100, number)
    except OverflowError:  # an integer beyond the range of floats
        return False


def last_number(text: str) -> tuple[int | float, bool] | None:
    """The last number in a text and whether it is a percentage; None when there is none or it is not finite."""
    box = boxed_content(text)
    found = None
    for found in numbers(text if box is None else box):  # noqa: B007
        pass
    if found is None:
        return None
    value = _value(found)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value, found["percent"] is not None


def numbers(text: str) -> Iterator[re.Match[str]]:
    """The numbers in a text, as matches with the groups of `_NUMBER`."""
    plain = _FRACTION.sub(r"\1/\2", text)
    return _NUMBER.finditer(plain.replace("−", "-").replace("{,}", ","))


def is_negative(found: re.Match[str]) -> bool:
    """Whether a number of `numbers` has a minus sign."""
    return "-" in (found["sign"] or "") + (found["sign2"] or "")


def _value(found: re.Match[str]) -> int | float:
    top = found["top"].replace(",", "")
    exponent = found["exponent"] or found["power"]
    value: int | float
    if exponent is not None:
        value = float(f"{top}e{exponent}")
    elif found["bottom"] is not None:
        bottom = float(found["bottom"])
        value = float(top) / bottom if bottom else math.nan
    elif top.isdigit() and len(top) <= 400:  # Python refuses to parse far longer ones
        value = int(top)
    else:
        value = float(top)
    return -value if is_negative(found) else value
