"""Bounds of the regular expressions that tasks name: they come from a run's founder."""

from __future__ import annotations

import math
import re

MAX_RE2_CHARS = 256
MAX_RE2_SIZE = 1_024
"""Limit of the characters of a pattern, times all its counts such as 3 in `{1,3}`: a bound on its automaton."""

_COUNT = re.compile(r"\{(\d+)(?:,(\d*))?\}")


def check_pattern(field: str, pattern: str) -> None:
    """Raises `ValueError` for a pattern whose automaton may be large."""
    size = len(pattern) * math.prod(max(1, int(low), int(high or 1)) for low, high in _COUNT.findall(pattern))
    if size > MAX_RE2_SIZE:
        raise ValueError(
            f"{field}'s characters times its counts must be at most {MAX_RE2_SIZE}, got {size}; "
            "write + or * instead of large counts"
        )
    if found := re.search(r"\\[pPC]", pattern):
        raise ValueError(f"{field} must not have {found[0]}: it stands for hundreds of ranges, or for a byte")
