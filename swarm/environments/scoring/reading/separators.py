r"""Digits without separators of thousands: `1,234`, `1{,}234`, `1\,234`, `1 234`, `1'234`, `1_234`, `1.234.567`."""

from __future__ import annotations

import re
from itertools import accumulate

SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
"""Powers of ten."""
_THIN = re.compile(r"(?<=\d)(?:\{,\}|,\\!\s*)(?=\d{3}(?!\d))")
_IN_LATEX = re.compile(r"(?<=\d)(?:\\[,!]|\{ \})+(?=\d{3}(?!\d))|(?<=,)\\!\s*")
_GROUPED = re.compile(
    r"(?<![\d.])(?<!\d[,'_ ])(?:[1-9]\d{0,2}(?:,\d{3}){1,20}|[1-9]\d?(?:,\d\d){1,9},\d{3}"
    r"|[1-9]\d{0,2}(?:'\d{3}){1,20}|[1-9]\d{0,2}(?:_\d{3}){1,20}|[1-9]\d{0,2}(?: \d{3}){1,20}(?! ?/)"
    r"|[1-9]\d{0,2}(?:\.\d{3}){2,20})(?!\d|[,'_]\d|\.\d{3}\.)"
    r"|(?<![\d.])[1-9]\d{0,2}(?:\.\d{3}){1,20}(?=,\d{1,2}(?![\d,]))"
)
_BRACKET = re.compile(r"[(\[]|\\\{")
_DECIMAL_COMMA = re.compile(
    r"(?<![\d.,(\[{])(?<!\d[,;] )(?:([1-9]\d*|0),(\d{1,2}|\d{4,})|(0),(\d{3}))(?![\d,)\]}]|, ?\d|; ?\d)"
)


def plain_digits(text: str, in_brackets: bool = True) -> str:
    """A text without separators of thousands; without `in_brackets` a comma within brackets separates parts."""
    text = _IN_LATEX.sub("", _THIN.sub(",", text))
    if in_brackets or _BRACKET.search(text) is None:
        return _GROUPED.sub(_digits, text)
    round_ = text.replace("\\{", "\\(").replace("\\}", "\\)")
    depths = list(accumulate((character in "([") - (character in ")]") for character in round_))
    return _GROUPED.sub(
        lambda found: found[0] if depths[found.start()] > 0 and "," in found[0] else _digits(found), text
    )


def decimal_points(text: str) -> str:
    """A text with `2,74` as `2.74`, where the comma can neither group digits nor separate parts."""
    return _DECIMAL_COMMA.sub(lambda found: f"{found[1] or found[3]}.{found[2] or found[4]}", text)


def _digits(found: re.Match[str]) -> str:
    return re.sub(r"\D", "", found[0])
