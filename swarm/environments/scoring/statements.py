r"""Finds the answer that a text states: in `\boxed{}`, or in prose, `The answer is $5$. I hope it is correct.`"""

from __future__ import annotations

import re

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
MAX_READ_CHARS = 16_384
"""At the end of a text."""
_OPENING = re.compile(r"(?<!\\)(?:\$\$|(?:\$|\\\()(?![ \t]{0,8}\n)|\\\[)")
_CLOSING = {
    "$": re.compile(r"(?<!\\)\$"),
    "$$": re.compile(r"\$\$"),
    r"\(": re.compile(r"\\\)"),
    r"\[": re.compile(r"\\\]"),
}
_NUMBER = re.compile(
    r"(?<![\w.,\\^{])[-+−]?[$€£]?\d+(?:[.,' _]\d+)*(?:\s?/\s?\d+)?"
    r"(?:\s?(?:[×x*]|\\times|\\cdot)\s?10\s?\^\s?\{?-?\d+\}?)?"
)
_TEXT = re.compile(r"\\(?:text|mathrm|mbox)\w*\s*\{[^{}]*\}")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{\w*\}(?:\{[clr|]*\})?")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}(?![A-Za-z({])")
_MARKERS = (
    re.compile(r"final answer\W{0,8}(?:is\b)?\s*:?|####", re.IGNORECASE),
    re.compile(r"\b(?:answer|result|solution)\**\s*(?:is\b|:|=)", re.IGNORECASE),
    re.compile(r"\A[A-Za-z ]{2,40}:\s"),
)
_VERB = re.compile(
    r"(?:\b|')(?:s|is|are|was|be|there|equals?|get|gives?|have|has|find|by|Thus|Therefore|So)\b|=", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"(?<=[^\s:*])(?:[.!?]\W{0,4}(?=\s+[A-Z\[<]|\s*$)|\n\s?\n)")
_AMOUNT = re.compile(r"(-?\d[\d.,' ]{0,30}\d)\s?[$€£](?=\s|\Z)")
_QUOTES = re.compile(r"\A(?:[\s*\"':]|\\\")+|(?:[\s*\"']|\\\")+\Z")
_CONJUNCTION = re.compile(r"\b(?:and|or)\b", re.IGNORECASE)
_NAME = re.compile(r"\W*(?:\\?[A-Za-z]+(?:_\w)?'?(?:\([A-Za-z]\))?)?\W*")
_NOT = re.compile(
    r"(?:\b(?:not|except|than|least|most|neither|nor|either|without|only if|unless)|n't)\W{0,4}$", re.IGNORECASE
)
_PERCENT = re.compile(r"\s?\\?%|\s?(?:percent|pct)\b", re.IGNORECASE)
Span = tuple[int, int]


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
    """Index of the brace that closes the content from `start` on."""
    depth = 1
    for position in range(start, len(text)):
        if text[position] in "{}":
            depth += 1 if text[position] == "{" else -1
            if depth == 0:
                return position
    return None


def answer_in(text: str) -> str:
    """The answer that a text gives: its last boxes, else the value that prose states, else the whole text.

    A final answer that is announced behind all boxes counts before them.
    """
    text = text[-MAX_READ_CHARS:]
    announced = [found.end() for found in _MARKERS[0].finditer(text)]
    behind = text[announced[-1] :] if announced else ""
    box = None if behind and "\\boxed" not in behind and _formulas(behind) else boxed_content(text)
    content = text if box is None else box
    formulas = _formulas(content)
    return _stated(content, formulas) if _is_prose(content, formulas) else content


def _formulas(text: str) -> list[Span]:
    """Spans of formulas with their delimiters; text between two amounts of money is no formula."""
    found: list[Span] = []
    unclosed: set[str] = set()
    position = 0
    while (opening := _OPENING.search(text, position)) is not None:
        position = opening.end()
        closing = None if opening[0] in unclosed else _CLOSING[opening[0]].search(text, position)
        if closing is None:
            unclosed.add(opening[0])
        elif opening[0] != "$" or _num_words(text[position : closing.start()]) < 3:
            position = closing.end()
            found.append((opening.start(), position))
    return found


def _num_words(text: str) -> int:
    """Number of words outside commands."""
    return len(_WORD.findall(_ENVIRONMENT.sub("", _TEXT.sub("", text))))


def _is_prose(text: str, formulas: list[Span]) -> bool:
    """Whether words stand around formulas or numbers, other than a unit behind one."""
    if any(marker.search(text) is not None for marker in _MARKERS):
        return True
    words = _num_words(_masked(text, formulas))
    if formulas:
        return words > 3 or _WORD.search(text, 0, formulas[0][0]) is not None
    return words > 3 and "\\begin" not in text and _VERB.search(text) is not None


def _stated(text: str, formulas: list[Span]) -> str:
    """The last formula or number, in the first sentence behind the last announcement of an answer if there is one."""
    for marker in _MARKERS:
        found = list(marker.finditer(text))
        if found:
            sentence = text[found[-1].end() :]
            end = _SENTENCE_END.search(_masked(sentence, _formulas(sentence)))
            sentence = sentence if end is None else sentence[: end.start()]
            sentence = _QUOTES.sub("", sentence)
            inside = _formulas(sentence)
            if (amount := _AMOUNT.match(sentence)) is not None:
                return amount[1]
            if sentence and not _num_words(_CONJUNCTION.sub("", _masked(sentence, inside))):
                return sentence
            if (value := _last_value(sentence, inside)) is not None:
                return value
    return _last_value(text, formulas) or text


def _last_value(text: str, formulas: list[Span]) -> str | None:
    """The last formula or number with those that are joined to it; names alone count if there is nothing else."""
    numbers = [(found.start(), found.end()) for found in _NUMBER.finditer(_masked(text, formulas))]
    spans = sorted((*formulas, *numbers))
    values = [span for span in spans if _NAME.fullmatch(text[span[0] : span[1]]) is None] or spans
    if not values:
        return None
    start, end = values[-1]
    if _NOT.search(text[max(0, start - 32) : start]) is not None:
        return None
    for first, last in reversed(values[:-1]):
        between = text[last:start]
        if not between.strip() or _CONJUNCTION.sub("", between).strip(" \n,;"):
            break
        start = first
    percent = _PERCENT.match(text, end)
    return text[start : end if percent is None else percent.end()]


def _masked(text: str, formulas: list[Span]) -> str:
    """A text whose formulas are replaced by backslashes."""
    kept, position = [], 0
    for start, end in formulas:
        kept += [text[position:start], "\\" * (end - start)]
        position = end
    return "".join((*kept, text[position:]))
