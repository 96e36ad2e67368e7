r"""One notation for the many ways to write the same short answer, in LaTeX or plain text."""

from __future__ import annotations

import re

from swarm.environments.scoring.forms.written import is_enclosed
from swarm.environments.scoring.reading.characters import TEXT, plain_characters, plain_text
from swarm.environments.scoring.reading.separators import SCALES, plain_digits
from swarm.environments.scoring.reading.units import noun_at, unit_at

MAX_CHARS = 2_000
"""Of a short answer; longer ones keep their notation."""

_SPACES = r"(?:\\[,;:! ]|~|\s)*"
_TEXT_RUN = re.compile(
    rf"(?<=[\w}})])(?:{_SPACES}(?:(?:/|\\cdot|\*)\s*)?{TEXT.pattern}(?:\s?\^\s?(?:\{{\s?-?\d\s?\}}|\d))?)+"
    rf"(?={_SPACES}(?:\$|\\\)|\\\])?{_SPACES}(?:$|[,;.)\]}}]|\\}}|\\text|\\cup|\\?(?:and|or)\b))"
)
"""Text commands at the end of a part: its unit, or words."""
_BARE = re.compile(r"(?<=[\d})])(?=[\s~]*\\?[A-Za-z(])|(?<=\\pi)(?=[\s~]+[A-Za-z])")
_END = re.compile(r"[\s~]*(?:$|[,;.)\]}]|\\}|\\cr|(?:and|or)\b)")
_WORD = re.compile(r"[\s~]+[A-Za-z]{4}")
_MARK = re.compile("\ue000([^\ue001\ue002]*)\ue002([^\ue001]*)\ue001")
"""A unit, after the number that it belongs to."""
_STYLE = re.compile(
    r"\\(?:left|right|[bB]ig{1,2}[lrm]?|displaystyle|textstyle|scriptstyle|limits|boldmath|bf|rm|it|[lL]arge|LARGE|small|color\s*\{\w*\}"
    r"|[hv]space\*?\s*\{[^{}]*\}|h?phantom\s*\{[^{}]*\})(?![A-Za-z])"
)
_AROUND = re.compile(r"\\(?:textcolor\s*\{\w*\}|underline|mathop|ensuremath)\s*\{([^{}]*)\}")
_DROPPED = re.compile(r"\\!\s*|\\,|°(?:\s*[CF](?![A-Za-z]))?|\\?\$|\\\(|\\\)|\\\[|\\\]|[€£¥₹]|(?:\.{3}|\\l?dots)$")
_DEGREES = re.compile(r"\^\s*(?:\{\s*)?\\circ\s*\}?|\\degrees?(?![a-z])|\\circ(?=\s*$)")
_SPACE = re.compile(r"\\[;: ]|\\(?:q?quad|thinspace|enspace|space)(?![a-z])|~|(?<=,)\\,")
_DOUBLED = re.compile(r"(?<!\\)\\\\(?=[A-Za-z]{2}|[{}\[\]()%$,;!])")
_OVER = re.compile(r"\{([^{}]*?)\\over(?![a-z])([^{}]*)\}")
_SHORT_ARGUMENTS = re.compile(r"\\(frac|binom)\s*(\d|[A-Za-z](?![A-Za-z]))\s*(\d|[A-Za-z](?![A-Za-z]))")
_SHORT_TOP = re.compile(r"\\(frac|binom)\s*(\d)\s*(?=\{)")
_SHORT_BOTTOM = re.compile(r"\\frac\s*\{([^{}]*)\}\s*(\d)")
_SHORT_ROOT = re.compile(r"\\sqrt\s*(\d)")
_MIXED = re.compile(
    r"(?<![\w./^])(\d{1,9})\s+(?:(\d{1,9})\s*/\s*(\d{1,9})(?![\d/.])|(?=\\frac\s*\{\s*\d{1,9}\s*\}\s*\{\s*\d))"
)
_SCIENTIFIC = re.compile(r"(?<![\w.\\])(\d+(?:\.\d*)?|\.\d+)[eE]([-+]?\d{1,4})(?![\w.])")
_TIMES_TEN = re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*(?:\^|\*\*))")
_PERCENT = re.compile(r"(?<=[\d}])[\s$]*(?:percent(?:age)?(?:\s+points?)?|per\s+cent|pct\.?)(?![a-z])", re.IGNORECASE)
_SCALE = re.compile(rf"(?<=\d)\s+({'|'.join(SCALES)})(?![A-Za-z])", re.IGNORECASE)
_NEGATIVE = re.compile(r"(?:^|(?<=[=,(\[{]))\s*(?:negative|minus)\s+(?=[\d.\\])", re.IGNORECASE)
_PLAIN_FUNCTION = re.compile(
    r"(?<![a-z\\])(?:sqrt(?=\d)|(?:sqrt|sin|cos|tan|sec|csc|cot|log|ln|exp|arc(?:sin|cos|tan))(?=[({])|pi(?![a-z]))"
)
_PLAIN_ABSOLUTE = re.compile(r"(?<![a-z\\])abs\(([^()]*)\)")
_PLAIN_INVERSE = re.compile(r"(?<![a-z\\])a(sin|cos|tan)(?=\()")
_PLAIN_ROOT = re.compile(r"\\sqrt\(([^()]*)\)")
_PLAIN_NAME = re.compile(r"(?<![A-Za-z\\])(?:pi|alpha|beta|gamma|theta|lambda|sigma|omega|phi)(?![A-Za-z])")
_PLAIN_APPLIED = re.compile(
    r"(?<![A-Za-z\\])(?:(?:arc)?(?:sin|cos|tan)|sec|csc|cot|log|ln)(?=\s+(?:\d|[A-Za-z](?![A-Za-z])|\\)|\^)"
)
_BASE = re.compile(r"(?<=\d)_(two|three|four|five|six|seven|eight|nine|ten|10(?!\d)|twelve|sixteen)")
_BASES = {
    **{word: f"_{n}" for n, word in enumerate(["two", "three", "four", "five", "six", "seven", "eight", "nine"], 2)},
    "ten": "", "10": "", "twelve": "_12", "sixteen": "_16",
}  # fmt: skip
_PLAIN_CUBE_ROOT = re.compile(r"(?<![a-z\\])cbrt\(([^()]*)\)")
_INFINITY = re.compile(r"(?<![a-z\\])(?:infinity|infty|inf|oo)(?![a-z])", re.IGNORECASE)
_NAME = re.compile(
    r"(?:m?\\angle[a-z]{1,3}|\\[a-z]+|[a-z]\w?|\|[a-z]{2}\||[a-z](?:_\w+)?:[a-z]|[a-z]{4,20})(?:_\w+)?'{0,2}(?:\([\w.,+-]{1,12}\))?|\((?:[a-z],){1,3}[a-z]\)"
)
"""Of a value, alone on the left side."""
_IN = re.compile(r"\\?[a-z]\\in(?![a-z])")
_INDEX = re.compile(r"_\{(\w+)\}")
_LETTER = re.compile(r"^\(([a-z])\)$")
_CONJUNCTION = re.compile(r"(?<=\S)(?:[,;]\s*|\s+|(?<=\)))(?:and|or)(?:\s+|(?=\())(?=\S)", re.IGNORECASE)
_FUSED = re.compile(r"(?<=\d)(?<![_^]\d)\s+(?=\d)")
_OPEN = re.compile(r"(?:(?<=\\cup)|(?<=\\in)|^)\]([^][,]+,[^][,]+)([][])")
_HALF_OPEN = re.compile(r"(\[)([^][,]+,[^][,]+)\[")
"""French intervals, `]3,5]`."""
_ALL_REAL = re.compile(r"^(?:[a-z]?\\in)?(?:\(?\\mathbb\{?r\}?\)?|allreals?(?:numbers)?|realnumbers|\\re(?:als)?)$")
_RELATIONS = {
    "<=": r"\\le(?![a-zA-Z])",
    ">=": r"\\ge(?![a-zA-Z])",
    "≠": r"\\neq?(?![a-zA-Z])",
    "<": r"\\lt(?![a-zA-Z])",
}
_RELATION_COMMANDS = [(re.compile(command), sign) for sign, command in _RELATIONS.items()]
_RELATION_COMMANDS += [(re.compile(r"\\gt(?![a-zA-Z])"), ">"), (re.compile(r"\\approx(?![a-zA-Z])|\\simeq"), "≈")]
_FORMS = {
    "\\mathbb{R}": "ℝ",
    "\\emptyset": "\\varnothing ∅",
    "\\frac": "\\dfrac \\tfrac \\cfrac \\nicefrac \\sfrac",
    "\\binom": "\\dbinom \\tbinom",
    "\\overline": "\\bar \\overbar",
    "\\cup": "∪ \\bigcup",
    "<=": "\\leqslant \\leqq \\leq ≤ =<",
    ">=": "\\geqslant \\geqq \\geq ≥",
    "≠": "!= \\not=",
    "\\{": "\\lbrace",
    "\\}": "\\rbrace",
    "|": "\\lvert \\rvert \\vert \\mid",
    "\\sqrt": "√",
    "\\pi": "π",
    "\\pm": "±",
    "\\infty": "∞ \\infin",
    "\\cdot": "·",
    "\\times": "×",
    "\\div": "÷",
    "^": "**",
    "-": "—",
    "%": "\\%",
}
"""Notations of the same thing."""
_SAME = [(form, name) for name, forms in _FORMS.items() for form in forms.split()]


def normalise(text: str) -> str:
    """One notation of a short answer; units, and the left side of `x = …`, are dropped."""
    return last_side(without_units(notation(text)))


def notation(text: str) -> str:
    """One notation of a short answer, in which units are marked."""
    for form in ("ℝ", "—"):
        text = text.replace(form, next(name for other, name in _SAME if other == form))
    text = plain_characters(text).replace("\\&", " and ")
    if len(text) > MAX_CHARS:
        return "".join(text.split()).casefold()
    if "\\\\" in text and "\\begin" not in text:
        text = _DOUBLED.sub(r"\\", text)
    text = _AROUND.sub(r"\1", text.replace("\\mathbb{R}", "\\mathbb R"))
    text = _STYLE.sub("", text)
    text = plain_text(_TEXT_RUN.sub(_unit_of_run, text)).replace("\\\\", "\\cr ")
    for form, name in _SAME:
        text = text.replace(form, name)
    for command, sign in _RELATION_COMMANDS:
        text = command.sub(sign, text)
    text = _PERCENT.sub("%", _DEGREES.sub("°", text))
    text = _DROPPED.sub("", _SPACE.sub(" ", text)).strip().rstrip(".")
    text = _SCALE.sub(lambda found: f"\\cdot10^{{{SCALES[found[1].casefold()]}}}", text)
    text = _NEGATIVE.sub("-", plain_digits(_TIMES_TEN.sub(r"\\times", text), in_brackets=False))
    text = _OVER.sub(r"\\frac{\1}{\2}", text)
    text = _SHORT_TOP.sub(r"\\\1{\2}", _SHORT_ARGUMENTS.sub(r"\\\1{\2}{\3}", text))
    text = _MIXED.sub(_as_mixed, text)
    text = _PLAIN_APPLIED.sub(r"\\\g<0>", _PLAIN_NAME.sub(r"\\\g<0> ", _marked(text)))
    text = _FUSED.sub(",", _CONJUNCTION.sub(",", text))
    text = "".join(_SCIENTIFIC.sub(r"\1\\cdot10^{\2}", text).split()).rstrip(".").casefold()
    text = _SHORT_BOTTOM.sub(r"\\frac{\1}{\2}", text)
    text = _PLAIN_CUBE_ROOT.sub(r"\\sqrt[3]{\1}", text)
    text = _PLAIN_INVERSE.sub(r"\\arc\1", _PLAIN_ABSOLUTE.sub(r"|\1|", _INFINITY.sub(r"\\infty", text)))
    text = _PLAIN_FUNCTION.sub(r"\\\g<0>", text)
    text = _SHORT_ROOT.sub(r"\\sqrt{\1}", _PLAIN_ROOT.sub(r"\\sqrt{\1}", text))
    text = _without_braces(_BASE.sub(lambda found: _BASES[found[1]], _INDEX.sub(r"_\1", text)).replace(";", ","))
    text = _HALF_OPEN.sub(r"\1\2)", _OPEN.sub(_as_open, text)) if "]" in text or "[" in text else text
    return "(-\\infty,\\infty)" if _ALL_REAL.match(text) else _LETTER.sub(r"\1", text)


def without_units(text: str) -> str:
    """A text of `notation` without its units."""
    return _MARK.sub("", text)


def units_as_letters(text: str) -> str:
    """A text of `notation` whose units are letters, as if they were variables."""
    return _MARK.sub(r"\2", text)


def unit_of(text: str) -> str:
    """The unit at the end of a text of `notation`; empty without any."""
    found = _MARK.search(text)
    return found[1] if found is not None and found.end() == len(text) else ""


def last_side(text: str) -> str:
    r"""A text of `notation` without `x=`, `f(x)=` or `x\in` before it; the last side of `x=2+3=5`."""
    exact, sign, rounded = text.partition("≈")
    if sign:
        text = f"{exact}={rounded}" if _NAME.fullmatch(exact) is not None else exact
    if _IN.match(text) is not None:
        return _IN.sub("", text)
    if any(sign in text for sign in "<>≠"):
        return text
    sides = at_top(text, "=")
    if len(sides) == 2 and _NAME.fullmatch(sides[0]) is not None:
        return sides[1]
    return sides[-1] if len(sides) > 2 and len(at_top(text, ",")) == 1 else text


def name_of(text: str) -> str:
    """The left side that `last_side` drops; empty without one."""
    name = text.partition("=")[0]
    return name if "=" in text and _NAME.fullmatch(name) is not None else ""


def at_top(text: str, separator: str) -> list[str]:
    """The parts of a text between separators outside all brackets."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and text.startswith(separator, position):
            parts.append(text[start:position])
            start = position + len(separator)
    return [*parts, text[start:]]


def _as_open(found: re.Match[str]) -> str:
    return f"({found[1]}{']' if found[2] == ']' else ')'}"


def _as_mixed(found: re.Match[str]) -> str:
    """A mixed number, if the part is less than 1."""
    if found[2] is None:
        return found[1]
    return f"{found[1]}\\frac{{{found[2]}}}{{{found[3]}}}" if int(found[2]) < int(found[3]) else found[0]


def _unit_of_run(found: re.Match[str]) -> str:
    flat = re.sub(r"\\[,;:! ]|~", " ", plain_text(found[0]))
    for unit in (unit_at(flat, 0), noun_at(flat, 0)):
        if unit is not None and not flat[unit[1] :].strip():
            return _mark(unit[0], flat)
    return flat


def _marked(text: str) -> str:
    """A text in which the units without text commands are marked."""
    kept, start = [], 0
    for found in _BARE.finditer(text):
        position = found.start()
        unit = unit_at(text, position, letters=False) if position >= start else None
        if unit is None and _WORD.match(text, position) is not None:
            unit = noun_at(text, position)
        if unit is not None and _END.match(text, unit[1]) is not None:
            kept += [text[start:position], _mark(unit[0], text[position : unit[1]])]
            start = unit[1]
    return "".join((*kept, text[start:]))


def _mark(unit: str, letters: str) -> str:
    return f"\ue000{unit}\ue002{letters}\ue001"


def _without_braces(text: str) -> str:
    while text.startswith("{") and is_enclosed(text):
        text = text[1:-1]
    return text
