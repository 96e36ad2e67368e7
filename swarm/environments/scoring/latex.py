r"""The LaTeX subset of final answers: finds `\boxed{}`, normalises notation, evaluates plain numbers."""

from __future__ import annotations

import math
import re

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_DROPPED = re.compile(
    r"\\left(?![a-z])|\\right(?![a-z])|\\[,;!: ]|\\q?quad(?![a-z])|\\displaystyle(?![a-z])"
    r"|\^\s*(?:\{\s*)?\\circ\s*\}?|\\degree|°|\$|\\\(|\\\)|\\\[|\\\]|~"
)
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mathit|operatorname|mbox)\s*\{([^{}]*)\}")
_UNIT = re.compile(r"(?<=[\d}])\\?(?:units?|cm|km|mm|meters?|inches|feet|degrees?|dollars|cents)(?:\^\{?[23]\}?)?$")
_SHORT_FRACTION = re.compile(r"\\frac\s*(\d)\s*(\d)")
_SHORT_ROOT = re.compile(r"\\sqrt\s*(\d)")
_LEFT_SIDE = re.compile(r"^\\?[A-Za-z]\w?(?:\([A-Za-z]\))?=(?=[^=]+$)")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\})(?=\d{3}(?!\d))")
_TOKEN = re.compile(r"\d+(?:\.\d*)?|\.\d+|\\frac|\\sqrt|\\pi|\\cdot|\\times|\\div|[-+*/^(){}\[\]%]")
_MAX_TOKENS = 200
_MAX_DEPTH = 40


def boxed_content(text: str) -> str | None:
    r"""The content of the last closed `\boxed{}` of a text, with balanced braces."""
    openings = [match.end() for match in _BOX.finditer(text)]
    for start in openings[:-9:-1]:  # many unclosed openings must not take quadratic time
        depth = 1
        for position in range(start, len(text)):
            if text[position] in "{}":
                depth += 1 if text[position] == "{" else -1
                if depth == 0:
                    return text[start:position].strip()
    return None


def normalise(text: str) -> str:
    """One notation for the many ways to write the same short answer; the left side of `x = …` is dropped."""
    text = _TEXT.sub(r"\1", text).replace("−", "-").replace("\\%", "%")
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\\cfrac", "\\frac")
    text = text.replace("π", "\\pi").replace("√", "\\sqrt").replace("\\lbrace", "\\{").replace("\\rbrace", "\\}")
    text = _DROPPED.sub("", text)
    text = "".join(text.split()).rstrip(".").casefold()
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text)
    text = _SHORT_ROOT.sub(r"\\sqrt{\1}", text)
    text = _LEFT_SIDE.sub("", text)
    text = _UNIT.sub("", text)
    return text if split_tuple(text) is not None else _THOUSANDS.sub("", text)


def split_tuple(text: str) -> list[str] | None:
    """Brackets and elements of a normalised tuple, set or interval, e.g. `["(", "1", "2", ")"]`; None for others."""
    opening, closing = ("\\{", "\\}") if text.startswith("\\{") else (text[:1], text[-1:])
    if opening not in ("(", "[", "\\{") or not text.endswith((")", "]", "\\}")):
        return None
    elements, depth, start = [], 0, 0
    inner = text[len(opening) : -len(closing)]
    for position, character in enumerate(inner):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                return None
        elif character == "," and depth == 0:
            elements.append(inner[start:position])
            start = position + 1
    if not elements:
        return None
    return [opening, *elements, inner[start:], closing]


def to_number(text: str) -> int | float | None:
    r"""Value of a normalised expression of numbers, + - * / ^, `\frac`, `\sqrt`, `\pi`, `%`; None for anything else."""
    tokens: list[str] = []
    position = 0
    for match in _TOKEN.finditer(text):
        if match.start() != position or len(tokens) == _MAX_TOKENS:
            return None
        tokens.append(match[0])
        position = match.end()
    if position != len(text) or not tokens:
        return None
    if len(tokens) == 1 and tokens[0].isdigit() and len(tokens[0]) <= 400:
        return int(tokens[0])
    try:
        value = _Expression(tokens).value()
    except (_Unreadable, OverflowError, ZeroDivisionError, ValueError):
        return None
    return value if math.isfinite(value) else None


class _Unreadable(Exception):
    """The text is not an expression of this module's grammar."""


class _Expression:
    """Recursive descent over tokens: sum > product > sign > power > atom."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def value(self) -> float:
        total = self._sum()
        if self._peek():
            raise _Unreadable
        return total

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self, wanted: str = "") -> str:
        token = self._peek()
        if not token or (wanted and token != wanted):
            raise _Unreadable
        self._next += 1
        return token

    def _sum(self) -> float:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _Unreadable
        total = self._product()
        while self._peek() in ("+", "-"):
            total = total + self._product() if self._take() == "+" else total - self._product()
        self._depth -= 1
        return total

    def _product(self) -> float:
        total = self._signed()
        while self._peek() and self._peek() not in ("+", "-", ")", "}", "]"):
            if self._peek() in ("/", "\\div"):
                self._take()
                total /= self._signed()
            else:  # explicit, or implied as in 2\pi
                if self._peek() in ("*", "\\cdot", "\\times"):
                    self._take()
                total *= self._signed()
        return total

    def _signed(self) -> float:
        sign = 1.0
        while self._peek() in ("+", "-"):
            sign = -sign if self._take() == "-" else sign
        return sign * self._power()

    def _power(self) -> float:
        base = self._atom()
        while self._peek() == "%":
            self._take()
            base /= 100
        if self._peek() != "^":
            return base
        self._take()
        if self._peek() == "-":
            raise _Unreadable  # in LaTeX only the sign would be the exponent
        power = base ** self._atom()
        if isinstance(power, complex):
            raise _Unreadable
        return float(power)

    def _atom(self) -> float:
        token = self._take()
        if token[0].isdigit() or token[0] == ".":
            return float(token)
        if token == "\\pi":
            return math.pi
        if token == "\\frac":
            return self._group("{", "}") / self._group("{", "}")
        if token == "\\sqrt":
            degree = self._group("[", "]") if self._peek() == "[" else 2.0
            radicand = self._group(self._peek(), {"{": "}", "(": ")"}.get(self._peek(), ""))
            return float(math.sqrt(radicand) if degree == 2.0 else math.pow(radicand, 1 / degree))
        if token in ("(", "{"):
            self._next -= 1
            return self._group(token, ")" if token == "(" else "}")
        raise _Unreadable

    def _group(self, opening: str, closing: str) -> float:
        if not closing:
            raise _Unreadable
        self._take(opening)
        inside = self._sum()
        self._take(closing)
        return inside
