r"""The LaTeX of final answers: finds `\boxed{}`, splits normalised tuples, sets, relations and matrices."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from swarm.environments.scoring.reading.notation import at_top

_BOX = re.compile(
    r"\\(?:boxed|fbox|framebox)(?:\s*(?P<brace>\{)|\s*(?P<bare>-?\d+(?:[.,]\d+)*|\\[dtc]?frac\s*(?:\d\s*\d|\{[^{}]*\}\s*\{[^{}]*\})"
    r"|\\(?!boxed|text)[a-z]{2,8}(?![a-z{]))|\s+(?P<letter>[A-Za-z])(?![A-Za-z]))"
)
"""With braces, or as TeX also takes it before a number, fraction, command or letter."""
_BETWEEN = re.compile(r"\\(?:text|mbox|q?quad|[,;:! ])|\b(?:and|or)\b", re.IGNORECASE)
"""Apart from punctuation what may be between boxes that make one answer."""
_NOT_BETWEEN = re.compile(r"[\w=<>≤≥≠≈]")
MAX_JOINING_CHARS = 32
_PERCENT_BEHIND = re.compile(r"(?:\$|\\\)|\s){0,8}(?:\\?%|(?:percent|per cent|pct)\b)", re.IGNORECASE)
_RELATION = re.compile(r"[<>]=?|=")
_MATRIX = re.compile(
    r"(?P<around>[\[(])?\\begin\{(?P<kind>[pbv]?matrix|array)\}(?:(?<=array\})\{[clr|]*\})?(?P<cells>.*)\\end\{(?P=kind)\}"
    r"(?(around)[\])])"
)


def boxed_content(text: str) -> str | None:
    r"""The content of the last closed `\boxed{}` of a text, with balanced braces.

    Other boxes that precede it at once, with `or`, `and` or a comma between them, are parts of the same answer, so that
    nobody can offer several answers of which one counts.
    """
    contents: list[str] = []
    start = len(text)
    for box in list(_BOX.finditer(text))[:-9:-1]:  # many unclosed openings must not take quadratic time
        end = box.end() if box["brace"] is None else _closing(text, box.end())
        if end is None or end >= start + (box["brace"] is None):
            continue
        behind = end + (box["brace"] is not None)
        if contents and (start - end > MAX_JOINING_CHARS or not _joins(text[behind:start])):
            break
        content = (text[box.end() : end] if box["brace"] else box["bare"] or box["letter"]).strip()
        if not contents and content and _PERCENT_BEHIND.match(text, behind) is not None:
            content += "\\%"
        contents, start = [content, *(other for other in contents if other != content)], box.start()
    return ", ".join(contents) if contents else None


def _joins(between: str) -> bool:
    return _NOT_BETWEEN.search(_BETWEEN.sub("", between)) is None


def _closing(text: str, start: int) -> int | None:
    """Where the brace is closed whose content begins at `start`."""
    depth = 1
    for position in range(start, len(text)):
        if text[position] in "{}":
            depth += 1 if text[position] == "{" else -1
            if depth == 0:
                return position
    return None


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
