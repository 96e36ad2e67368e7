"""One form of characters that look the same: dashes, quotes, spaces, widths, composed letters, superscripts."""

from __future__ import annotations

import re
import unicodedata

TEXT = re.compile(
    r"\\(?:text\w*|math(?:rm|bf|it|sf|tt|bb|cal|normal)|boldsymbol|bm|bold|emph|operatorname\*?|[mh]box|pmb|num)\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
)
MAX_COMPOSED_CHARS = 4_096
"""Of a text whose letters are composed, which takes quadratic time on strange ones."""

_SAME = str.maketrans(
    {
        **dict.fromkeys("‐‑‒–−﹣－˗", "-"),
        **dict.fromkeys("’‘‛ʼ′＇", "'"),
        **dict.fromkeys("“”„‟″＂", '"'),
        **dict.fromkeys("⋅∙•‧", "·"),
        **dict.fromkeys("✕✖", "×"),
        **dict.fromkeys("⁄∕", "/"),
        **dict.fromkeys("、，", ","),
        **dict.fromkeys("｡。", "."),
        **dict.fromkeys("⩽≦", "≤"),
        **dict.fromkeys("⩾≧", "≥"),
        "¢": " cents",
        "∣": "|",
        "∖": "\\",
    }
)
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_LOWERED = re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋ₐₑₒₓₙ]+")
_PLACES = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ₀₁₂₃₄₅₆₇₈₉₊₋ₐₑₒₓₙ", "0123456789+-n0123456789+-aeoxn")
_PART = re.compile("[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒]")
_UNSEEN = {"Cf", "Co", "Cn", "Cs"}
"""Categories of characters that nobody sees: format, private use, unassigned, surrogates."""


def plain_characters(text: str) -> str:
    """The text in one form of characters: `2²` as `2^{2}`, `5½` as `5 1/2`. Of long texts letters stay as they are."""
    if text.isascii():
        return text
    text = text.translate(_SAME)
    text = _RAISED.sub(lambda found: f"^{{{found[0].translate(_PLACES)}}}", text)
    text = _LOWERED.sub(lambda found: f"_{{{found[0].translate(_PLACES)}}}", text)
    text = _PART.sub(lambda found: f" {unicodedata.normalize('NFKC', found[0]).replace('⁄', '/')}", text)
    if len(text) <= MAX_COMPOSED_CHARS:
        text = unicodedata.normalize("NFKC", text)
    return "".join(
        " " if character.isspace() and character not in "\n\r\t" else character
        for character in text
        if unicodedata.category(character) not in _UNSEEN
    )


def plain_text(text: str) -> str:
    r"""The text without `\text{}` and the like around parts of it."""
    return TEXT.sub(r"\1", TEXT.sub(r"\1", text)) if "\\" in text else text
