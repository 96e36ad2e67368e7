r"""The LaTeX of final answers: finds `\boxed{}`, normalises notation, splits tuples and matrices."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Literal, NamedTuple

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_JOINING = re.compile(r"[\s$]*(?:,|;|/|\\?\b(?:and|or)\b|\\text\s*\{\s*(?:and|or)\s*\})?[\s$]*", re.IGNORECASE)
"""Between boxes that make one answer."""
MAX_JOINING_CHARS = 32
_DROPPED = re.compile(
    r"\\left(?![a-z])|\\right(?![a-z])|\\,|\\!\s*|\\displaystyle(?![a-z])"
    r"|\^\s*(?:\{\s*)?\\circ\s*\}?|\\degree|°|\\?\$|\\\(|\\\)|\\\[|\\\]"
)
_SPACE = re.compile(r"\\[;: ]|\\q?quad(?![a-z])|~|(?<=,)\\,")
_TEXT = re.compile(r"\\(?:text(?:bf|rm|it|sf|tt)?|math(?:rm|bf|it|sf)|boldsymbol|operatorname|mbox)\s*\{([^{}]*)\}")
_UNIT = re.compile(r"(?<=[\d}])\\?(?:units?|cm|km|mm|meters?|inches|feet|degrees?|dollars|cents)(?:\^\{?[23]\}?)?$")
_SHORT_FRACTION = re.compile(r"\\frac\s*(\d)\s*(\d)")
_SHORT_ROOT = re.compile(r"\\sqrt\s*(\d)")
_LEFT_SIDE = re.compile(r"^\\?[A-Za-z]\w?(?:\([A-Za-z]\))?(?:=|\\in(?![a-z]))(?=[^=]+$)")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\})(?=\d{3}(?!\d))")
_MIXED = re.compile(r"(?<![\d./])(\d{1,9})\s+(\d{1,9})\s*/\s*(\d{1,9})(?![\d/.])")
_SCIENTIFIC = re.compile(r"(?<![\w.\\])(\d+(?:\.\d+)?)e([-+]?\d{1,4})(?![\w.])")
_PERCENT = re.compile(r"(?<=\d)percent$")
_PLAIN_FUNCTION = re.compile(r"(?<![a-z\\])(?:(?:sqrt|sin|cos|tan|log|ln|exp)(?=[({])|pi(?![a-z]))")
_INDEX = re.compile(r"_\{(\w)\}")
_LETTER = re.compile(r"^\(([a-z])\)$")
_CONJUNCTION = re.compile(r"(?<=\S)(?:,\s*|\s+)(?:and|or)\s+(?=\S)", re.IGNORECASE)
_RELATIONS = {"<=": r"\\le(?![a-zA-Z])", ">=": r"\\ge(?![a-zA-Z])", "≠": r"\\neq?(?![a-zA-Z])"}
_RELATION_COMMANDS = [(re.compile(command), sign) for sign, command in _RELATIONS.items()]
_RELATION = re.compile(r"[<>]=?|=")
_MATRIX = re.compile(
    r"\\begin\{(?P<kind>[pbv]?matrix|array)\}(?:(?<=array\})\{[clr|]*\})?(?P<cells>.*)\\end\{(?P=kind)\}"
)
_FORMS = {
    "\\frac": "\\dfrac \\tfrac \\cfrac",
    "\\binom": "\\dbinom \\tbinom",
    "\\overline": "\\bar",
    "<=": "\\leqslant \\leq ≤",
    ">=": "\\geqslant \\geq ≥",
    "\\{": "\\lbrace",
    "\\}": "\\rbrace",
    "|": "\\lvert \\rvert",
    "\\sqrt": "√",
    "\\pi": "π",
    "\\pm": "±",
    "\\cup": "∪",
    "\\infty": "∞",
    "\\cdot": "·",
    "\\times": "×",
    "\\div": "÷",
    "^{2}": "²",
    "^{3}": "³",
    "^": "**",
    "-": "−",
    "%": "\\%",
}
"""Notations of the same thing."""
_SAME = [(form, name) for name, forms in _FORMS.items() for form in forms.split()]


def boxed_content(text: str) -> str | None:
    r"""The content of the last closed `\boxed{}` of a text, with balanced braces.

    Other boxes that precede it at once, with `or`, `and` or a comma between them, are parts of the same answer, so that
    nobody can offer several answers of which one counts.
    """
    contents: list[str] = []
    start = len(text)
    for box in list(_BOX.finditer(text))[:-9:-1]:  # many unclosed openings must not take quadratic time
        end = _closing(text, box.end())
        if end is None or end >= start:
            continue
        if contents and (start - end > MAX_JOINING_CHARS or _JOINING.fullmatch(text, end + 1, start) is None):
            break
        content, start = text[box.end() : end].strip(), box.start()
        contents = [content, *(other for other in contents if other != content)]
    return ", ".join(contents) if contents else None


def _closing(text: str, start: int) -> int | None:
    """Where the brace is closed whose content begins at `start`."""
    depth = 1
    for position in range(start, len(text)):
        if text[position] in "{}":
            depth += 1 if text[position] == "{" else -1
            if depth == 0:
                return position
    return None


def plain_text(text: str) -> str:
    r"""The text without `\text{}` and the like around parts of it."""
    return _TEXT.sub(r"\1", text)


def normalise(text: str) -> str:
    """One notation for the many ways to write the same short answer; the left side of `x = …` is dropped."""
    text = plain_text(text).replace("\\\\", "\\cr ")
    for form, name in _SAME:
        text = text.replace(form, name)
    for command, sign in _RELATION_COMMANDS:
        text = command.sub(sign, text)
    text = _DROPPED.sub("", _SPACE.sub(" ", text)).strip().rstrip(".")
    text = _without_thousands(text)
    text = _CONJUNCTION.sub(",", _MIXED.sub(r"\1\\frac{\2}{\3}", text))
    text = "".join(text.split()).rstrip(".").casefold()
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text)
    text = _SHORT_ROOT.sub(r"\\sqrt{\1}", _PLAIN_FUNCTION.sub(r"\\\g<0>", text))
    text = _PERCENT.sub("%", _SCIENTIFIC.sub(r"\1\\cdot10^{\2}", _INDEX.sub(r"_\1", text)))
    return _LETTER.sub(r"\1", _UNIT.sub("", without_left_side(text)))


def _without_thousands(text: str) -> str:
    """A text without the commas in numbers; those in brackets and those that a space follows separate parts."""
    separators = list(_THOUSANDS.finditer(text))
    if not separators:
        return text
    depths = list(
        accumulate(
            (character in "([") - (character in ")]") for character in text.replace("\\{", "\\(").replace("\\}", "\\)")
        )
    )
    kept, start = [], 0
    for found in separators:
        if depths[found.start()] <= 0:
            kept.append(text[start : found.start()])
            start = found.end()
    return "".join((*kept, text[start:]))


def without_left_side(text: str) -> str:
    r"""A normalised text without `x=`, `f(x)=` or `x\in` before it."""
    return _LEFT_SIDE.sub("", text)


class Parts(NamedTuple):
    """What a normalised answer consists of."""

    kind: Literal["single", "set", "union", "ordered", "equation", "inequality"]
    shape: str
    """What else must agree: brackets, relation, rows of a matrix."""
    parts: list[str]


def split(text: str) -> Parts:
    """The parts of a normalised answer; a `single` is one part."""
    if (matrix := _MATRIX.fullmatch(text)) is not None:
        rows = [row.split("&") for row in matrix["cells"].removesuffix("\\cr").split("\\cr")]
        bars = "|" if matrix["kind"] == "vmatrix" else ""
        return Parts("ordered", f"{bars}{list(map(len, rows))}", [cell for row in rows for cell in row])
    if len(regions := at_top(text, "\\cup")) > 1:
        return Parts("union", "", regions)
    if (found := _bracketed(text)) is not None:
        opening, inner, closing = found
        parts = at_top(inner, ",")
        if opening == "\\{":
            return Parts("set", "", parts)
        if len(parts) > 1:
            return Parts("ordered", f"{opening}{closing}", parts)
    if len(parts := at_top(text, ",")) > 1:
        return Parts("set", "", parts)
    if "\\pm" in text:
        return Parts("set", "", [text.replace("\\pm", sign) for sign in "+-"])
    return _relation(text)


def sides(text: str) -> list[str]:
    """What is between the equality signs and inequality signs of a normalised text."""
    return _RELATION.split(text)


def _relation(text: str) -> Parts:
    """An equation, or an inequality with the smaller side first."""
    relations = list(_RELATION.finditer(text))
    if len(relations) != 1:
        return Parts("single", "", [text])
    sides, relation = [text[: relations[0].start()], text[relations[0].end() :]], relations[0][0]
    if relation == "=":
        return Parts("equation", "", sides)
    return Parts("inequality", relation[1:], sides if relation[0] == "<" else sides[::-1])


def _bracketed(text: str) -> tuple[str, str, str] | None:
    """Opening bracket, content and closing bracket of a text that one pair of brackets encloses."""
    opening, closing = ("\\{", "\\}") if text.startswith("\\{") else (text[:1], text[-1:])
    if opening not in ("(", "[", "\\{") or not text.endswith((")", "]", "\\}")) or len(text) < len(opening + closing):
        return None
    inner = text[len(opening) : -len(closing)]
    depth = 0
    for character in inner:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return None
    return opening, inner, closing


def at_top(text: str, separator: str) -> list[str]:
    """The parts of a text between separators outside all brackets."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and text.startswith(separator, position):
            parts.append(text[start:position])
            start = position + len(separator)
    return [*parts, text[start:]]
