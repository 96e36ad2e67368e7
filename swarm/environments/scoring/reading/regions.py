r"""Inequalities of one variable as intervals: `3<x<=5` as `(3,5]`, `x<1` or `x>5` as `(-\infty,1)\cup(5,\infty)`."""

from __future__ import annotations

import re

from swarm.environments.scoring.reading.notation import at_top
from swarm.environments.scoring.values import number_of, read

_SIDE = r"([^<>=≠,]{1,200})"
_CHAIN = re.compile(rf"{_SIDE}(<=?|>=?)([a-z](?:\([a-z]\))?|\\[a-z]+)(<=?|>=?){_SIDE}")
_ONE = re.compile(rf"{_SIDE}(<=?|>=?|≠){_SIDE}")
_SET = re.compile(r"\\\{([a-z])(?:\\in(?:\\mathbb)?\{?r\}?)?[|:](.+)\\\}")
_WITHOUT = re.compile(r"(?:[a-z]\\in)?(?:\\mathbb)?\{?r\}?(?:\\setminus|\\backslash|-)\\\{([^,{}]{1,200})\\\}")
_ABSOLUTE = re.compile(r"\|[a-df-hj-z]\|(<=?)(\d[^<>=≠,]{0,40})")
_LETTER = re.compile(r"[a-df-hj-z](?:\([a-z]\))?|\\(?:theta|alpha|beta|lambda|mu|phi)")
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "≠": "≠"}


def region_of(text: str) -> str | None:
    """The values that a normalised relation, or a set of the values that fulfil one, allows; None for another text."""
    without = _WITHOUT.fullmatch(text)
    if without is not None:
        return f"(-\\infty,{without[1]})\\cup({without[1]},\\infty)"
    in_set = _SET.fullmatch(text)
    text = text if in_set is None else in_set[2]
    intervals = [_interval(part) for part in at_top(text, ",")]
    if len(intervals) > 2 or None in intervals:
        return None
    found = [each for each in intervals if each is not None]
    if len(found) == 1:
        return found[0]
    (low, _), (_, high) = (at_top(each[1:-1], ",")[:2] for each in sorted(found, key=lambda each: "-\\infty" in each))
    ends = [None if (steps := read(end)) is None else number_of(steps) for end in (low, high)]
    if ends[0] is not None and ends[1] is not None and ends[0] < ends[1]:  # both: `x>1` and `x<5`
        first, second = sorted(found, key=lambda each: "-\\infty" in each)
        return f"{first[0]}{low},{high}{second[-1]}"
    return "\\cup".join(found)


def _interval(text: str) -> str | None:
    chain = _CHAIN.fullmatch(text)
    if chain is not None:
        low, first, letter, second, high = chain.groups()
        if first[0] != second[0] or _LETTER.fullmatch(letter) is None:
            return None
        if first[0] == ">":
            low, first, second, high = high, second, first, low
        return f"{'[' if '=' in first else '('}{low},{high}{']' if '=' in second else ')'}"
    absolute = _ABSOLUTE.fullmatch(text)
    if absolute is not None:
        return f"{'[' if '=' in absolute[1] else '('}-{absolute[2]},{absolute[2]}{']' if '=' in absolute[1] else ')'}"
    one = _ONE.fullmatch(text)
    if one is None:
        return None
    left, relation, right = one.groups()
    if _LETTER.fullmatch(left) is None:
        left, relation, right = right, _TURNED[relation], left
    if _LETTER.fullmatch(left) is None or _LETTER.fullmatch(right) is not None:
        return None
    match relation:
        case "≠":
            return f"(-\\infty,{right})\\cup({right},\\infty)"
        case "<" | "<=":
            return f"(-\\infty,{right}{']' if '=' in relation else ')'}"
    return f"{'[' if '=' in relation else '('}{right},\\infty)"
