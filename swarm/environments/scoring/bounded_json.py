"""Parses foreign JSON: bounded size and depth, finite numbers only."""

from __future__ import annotations

import json
import math
import re

from pydantic import JsonValue

MAX_CHARACTERS = 2**16
MAX_DEPTH = 16
MAX_STRING = 200
"""Characters of one text in it: some scorers take quadratic time."""

_LONG_NUMBER = re.compile(r"[0-9]{400}")


def read_json(text: str, max_string: int = MAX_STRING) -> JsonValue:
    """The parsed value; None for text that is not JSON, exceeds the bounds, or has a non-finite number."""
    if len(text) > MAX_CHARACTERS or _LONG_NUMBER.search(text) is not None:
        return None
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if _is_sane(value, MAX_DEPTH, max_string) else None


def _refuse(constant: str) -> None:
    raise ValueError(f"not a number: {constant}")


def _is_sane(value: JsonValue, depth: int, max_string: int) -> bool:
    match value:
        case str():
            return len(value) <= max_string
        case float():
            return math.isfinite(value)
        case list():
            return depth > 0 and all(_is_sane(element, depth - 1, max_string) for element in value)
        case dict():
            return depth > 0 and all(
                len(key) <= max_string and _is_sane(element, depth - 1, max_string) for key, element in value.items()
            )
    return True
