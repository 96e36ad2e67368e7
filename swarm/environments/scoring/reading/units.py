r"""Units behind numbers: dropped where the other side has none, compared where both have one."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAMES: Mapping[str, str] = {
    "mm": "millimeter millimetre", "cm": "centimeter centimetre", "m": "meter metre", "km": "kilometer kilometre",
    "in": "inch inches", "ft": "foot feet", "yd": "yard", "mi": "mile",
    "mg": "milligram", "g": "gram", "kg": "kilogram", "lb": "pound lbs", "oz": "ounce", "t": "ton tonne",
    "ml": "milliliter millilitre", "l": "liter litre", "gal": "gallon", "qt": "quart",
    "ms": "millisecond", "s": "second sec", "min": "minute mins", "h": "hour hr hrs", "day": "days", "week": "",
    "month": "", "year": "yr yrs", "hz": "hertz", "n": "newton", "j": "joule", "kj": "kilojoule", "w": "watt",
    "kw": "kilowatt", "v": "volt", "a": "ampere amp", "pa": "pascal", "mol": "mole", "k": "kelvin",
    "dollar": "usd", "cent": "", "euro": "eur", "pence": "", "deg": "degree", "rad": "radian", "unit": "",
}  # fmt: skip
_OF = {
    word: unit
    for unit, names in _NAMES.items()
    for name in (unit, *names.split())
    for word in ((name,) if len(name) < 3 else (name, f"{name}s"))
}
_OF |= {"mph": "mi/h", "kph": "km/h", "kmh": "km/h", "ph": "h"}
_SHORT = {"m", "g", "l", "s", "h", "n", "j", "w", "v", "a", "k", "t"}
"""Also letters of mathematics."""
_WORDS = "|".join(sorted(map(re.escape, _OF), key=len, reverse=True))
_POWER = r"(?:\s*(?:\^|\*\*)\s*\{?\s*(?P<{0}>-?[1-4])\s*\}}?|(?P<{0}2>[23])(?![\d.\w]))?"
_FACTOR = rf"(?P<{{1}}>(?:square|sq\.?|cubic|cu\.?)\s+)?(?P<{{2}}>{_WORDS})\.?(?![a-z_(])"
_UNIT = re.compile(
    r"[\s~]*(?P<open>\\?[({]\s*)?"
    + (_FACTOR.replace("{1}", "kind").replace("{2}", "word") + _POWER.replace("{0}", "power").replace("}}?", "}?"))
    + r"(?:\s*(?P<sign>/|\bper\b|·|\\cdot|\s)\s*"
    + (_FACTOR.replace("{1}", "kind_b").replace("{2}", "below") + _POWER.replace("{0}", "power_b").replace("}}?", "}?"))
    + r")?(?(open)\s*[)}])",
    re.IGNORECASE,
)
_NOUN = re.compile(r"[\s~]*([a-z]{2,20}(?:[ ~]{1,2}[a-z]{1,20}){0,3})(?=\s*(?:$|[,;}\])]))", re.IGNORECASE)
_NO_NOUNS = frozenset(
    [
        "or",
        "and",
        "not",
        "to",
        "but",
        "if",
        "mod",
        "modulo",
        "base",
        "least",
        "most",
        "at",
        "than",
        "less",
        "more",
        "plus",
        "minus",
        "times",
        "over",
        "where",
        "when",
        "with",
        "for",
        "is",
        "are",
        "percent",
        "pct",
        "percentage",
        "per",
        "sqrt",
        "pi",
        "sin",
        "cos",
        "tan",
        "log",
        "ln",
        "exp",
        "frac",
        "million",
        "billion",
        "trillion",
        "thousand",
        "hundred",
    ]
)
"""Words that change what a number says."""
ANY = "unit"
"""Agrees with every other one, as does a power of it."""


def unit_at(text: str, position: int, letters: bool = True) -> tuple[str, int] | None:
    """The unit that begins at a position, in one notation such as `km/h` or `cm^2`, and its end; None without any.

    Without `letters` a single letter is a variable, not a unit.
    """
    found = _UNIT.match(text, position)
    if found is None:
        return None
    below = found["below"]
    if not letters and below is None and found["word"].casefold() in _SHORT:
        return None
    unit = _power(found["word"], found["kind"], found["power"] or found["power2"])
    if below is not None:
        power = found["power_b"] or found["power_b2"]
        is_divided = found["sign"] in ("/", "per") or (power or "").startswith("-")
        power = None if power is None or power.lstrip("-") == "1" else power.lstrip("-")
        unit += f"{'/' if is_divided else '*'}{_power(below, found['kind_b'], power)}"
    return unit, found.end()


def noun_at(text: str, position: int) -> tuple[str, int] | None:
    """Words that end a number, such as `apples`, without the plural's s; None where they could change what it says."""
    found = _NOUN.match(text, position)
    if found is None or not _NO_NOUNS.isdisjoint(found[1].casefold().split()):
        return None
    return " ".join(word.rstrip("s") for word in found[1].casefold().split()), found.end()


def agree(one: str, other: str) -> bool:
    """Whether two units, `\"\"` for none, may be of equal numbers."""
    if not one or not other or one == other:
        return True
    return ANY in (one.partition("^")[0], other.partition("^")[0])


def _power(word: str, kind: str | None, power: str | None) -> str:
    unit = _OF[word.casefold()]
    if kind is not None:
        power = "2" if kind.casefold().startswith("s") else "3"
    return f"{unit}^{power}" if power else unit
