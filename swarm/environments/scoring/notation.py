r"""One notation of short answers, in LaTeX or plain text: characters, digits, units, commands; and their parts.

Characters that look the same become one: dashes, quotes, spaces, widths, composed letters, superscripts. Separators of
thousands are dropped. Units behind numbers are marked: ignored if the other side has none, else compared.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from itertools import accumulate
from typing import Literal, NamedTuple

TEXT = re.compile(
    r"\\(?:text\w*|math(?:rm|bf|it|sf|tt|bb|cal|normal)|boldsymbol|bm|bold|emph|operatorname\*?|[mh]box|pmb|num)\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
)
MAX_COMPOSED_CHARS = 4_096
"""Longest text whose letters are composed, which takes quadratic time on odd input."""

_ALIKE = str.maketrans(
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
"""Categories of invisible characters: format, private use, unassigned, surrogates."""
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
"""Units that are also letters of mathematics."""
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
MAX_CHARS = 2_000
"""Longest short answer; longer ones keep their notation."""
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
"""Name of a value, alone on the left side."""
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
_RELATION = re.compile(r"[<>]=?|=")
_MATRIX = re.compile(
    r"(?P<around>[\[(])?\\begin\{(?P<kind>[pbv]?matrix|array)\}(?:(?<=array\})\{[clr|]*\})?(?P<cells>.*)\\end\{(?P=kind)\}"
    r"(?(around)[\])])"
)


def plain_characters(text: str) -> str:
    """The text in one form of characters: `2²` as `2^{2}`, `5½` as `5 1/2`. Of long texts letters stay as they are."""
    if text.isascii():
        return text
    text = text.translate(_ALIKE)
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


def is_enclosed(text: str) -> bool:
    """Whether one pair of brackets encloses a text."""
    if text[:1] + text[-1:] not in ("()", "{}"):
        return False
    depths = accumulate((character in "({") - (character in ")}") for character in text[:-1])
    return all(depth > 0 for depth in depths)


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


class Parts(NamedTuple):
    """Parts of a normalised answer."""

    kind: Literal["single", "set", "union", "ordered", "equation", "inequality"]
    shape: str
    """Brackets, relation, or rows of a matrix, which must agree, too."""
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
    """The texts between the relation signs of a normalised text."""
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
