r"""Whether two final answers are the same mathematics: numbers, expressions, tuples, sets, matrices, equations.

Expressions with letters are compared at points that are derived from both texts, so that no answer can aim at them.
"""

from __future__ import annotations

import cmath
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial

from swarm.environments.digests import draw
from swarm.environments.scoring.expressions import Step, number_of, read, value
from swarm.environments.scoring.forms import NUM_QUESTIONS, Asked, is_finished, is_in_form
from swarm.environments.scoring.notation import (
    MAX_CHARS,
    Parts,
    agree,
    at_top,
    decimal_points,
    last_side,
    name_of,
    notation,
    plain_characters,
    plain_digits,
    split,
    unit_of,
    units_as_letters,
    without_units,
)
from swarm.environments.scoring.statements import answer_in
from swarm.environments.scoring.written import read_number, same_number, same_written

_SIDE = r"([^<>=≠,]{1,200})"
_CHAIN = re.compile(rf"{_SIDE}(<=?|>=?)([a-z](?:\([a-z]\))?|\\[a-z]+)(<=?|>=?){_SIDE}")
_ONE = re.compile(rf"{_SIDE}(<=?|>=?|≠){_SIDE}")
_SET = re.compile(r"\\\{([a-z])(?:\\in(?:\\mathbb)?\{?r\}?)?[|:](.+)\\\}")
_WITHOUT = re.compile(r"(?:[a-z]\\in)?(?:\\mathbb)?\{?r\}?(?:\\setminus|\\backslash|-)\\\{([^,{}]{1,200})\\\}")
_ABSOLUTE = re.compile(r"\|[a-df-hj-z]\|(<=?)(\d[^<>=≠,]{0,40})")
_LETTER = re.compile(r"[a-df-hj-z](?:\([a-z]\))?|\\(?:theta|alpha|beta|lambda|mu|phi)")
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "≠": "≠"}
RELATIVE_TOLERANCE_OF_LETTERS = 1e-9
"""Tolerance for expressions with letters: far above rounding errors, far below the effect of a wrong term."""
ABSOLUTE_TOLERANCE = 1e-12
"""Rounding errors of terms that cancel."""
NUM_POINTS = 8
MIN_POINTS = 4
"""Least number of points where both sides must have a value."""
MAX_COMPARISONS = 1_000
"""Most comparisons of parts; beyond it answers differ."""
MAX_STATED = 10_000
"""Most comparisons of a question's parts with its references'."""
_HUNDREDTHS = re.compile(r",\d\d")
"""A decimal comma rather than a list."""
_WORD = re.compile(r"(?<![a-z\\])[a-z]{4}")
_COMMAND = re.compile(r"\\[a-z]+")


def region_of(text: str) -> str | None:
    """The values that a normalised relation, or a set of the values that fulfil one, allows; None for another text."""
    without = _WITHOUT.fullmatch(text)
    if without is not None:
        return f"(-\\infty,{without[1]})\\cup({without[1]},\\infty)"
    in_set = _SET.fullmatch(text)
    text = text if in_set is None else in_set[2]
    intervals = [_interval(part) for part in at_top(text, ",")]
    if len(intervals) > 2 or None in intervals:
        return None
    found = [each for each in intervals if each is not None]
    if len(found) == 1:
        return found[0]
    (low, _), (_, high) = (at_top(each[1:-1], ",")[:2] for each in sorted(found, key=lambda each: "-\\infty" in each))
    ends = [None if (steps := read(end)) is None else number_of(steps) for end in (low, high)]
    if ends[0] is not None and ends[1] is not None and ends[0] < ends[1]:  # both: `x>1` and `x<5`
        first, second = sorted(found, key=lambda each: "-\\infty" in each)
        return f"{first[0]}{low},{high}{second[-1]}"
    return "\\cup".join(found)


def _interval(text: str) -> str | None:
    chain = _CHAIN.fullmatch(text)
    if chain is not None:
        low, first, letter, second, high = chain.groups()
        if first[0] != second[0] or _LETTER.fullmatch(letter) is None:
            return None
        if first[0] == ">":
            low, first, second, high = high, second, first, low
        return f"{'[' if '=' in first else '('}{low},{high}{']' if '=' in second else ')'}"
    absolute = _ABSOLUTE.fullmatch(text)
    if absolute is not None:
        return f"{'[' if '=' in absolute[1] else '('}-{absolute[2]},{absolute[2]}{']' if '=' in absolute[1] else ')'}"
    one = _ONE.fullmatch(text)
    if one is None:
        return None
    left, relation, right = one.groups()
    if _LETTER.fullmatch(left) is None:
        left, relation, right = right, _TURNED[relation], left
    if _LETTER.fullmatch(left) is None or _LETTER.fullmatch(right) is not None:
        return None
    match relation:
        case "≠":
            return f"(-\\infty,{right})\\cup({right},\\infty)"
        case "<" | "<=":
            return f"(-\\infty,{right}{']' if '=' in relation else ')'}"
    return f"{'[' if '=' in relation else '('}{right},\\infty)"


def equivalent(answer: str, reference: str) -> bool:
    r"""Whether two answers have the same value, whatever their form; either may include its `\boxed{}`."""
    return _compare(answer, reference, _Comparison)


def is_answer(answer: str, reference: str, asked: Asked | None = None) -> bool:
    r"""Whether an answer has the reference's value, and the form of an answer (`forms.py`)."""
    return _compare(answer, reference, lambda seed: _Answers(seed, asked))


def is_stated(reference: str, asked: Asked | None) -> bool:
    """Whether a question has an expression of a normalised reference's value, or too many to tell."""
    return asked is not None and _statements_of(asked).have(reference)


def _compare(answer: str, reference: str, comparison: Callable[[str], _Comparison]) -> bool:
    texts = answer_in(answer), answer_in(reference)
    given, wanted = map(notation, texts)
    if not given or not wanted:
        return False
    if given == wanted:
        return True
    if max(len(given), len(wanted)) > MAX_CHARS:
        return False
    pairs = [(given, wanted), (units_as_letters(given), units_as_letters(wanted)), _with_decimal_points(*texts)]
    return any(comparison(f"{one}\n{other}").same(one, other) for one, other in dict.fromkeys(pairs))


def _with_decimal_points(answer: str, reference: str) -> tuple[str, str]:
    """Both with `2,74` as `2.74`, if it is all that one has and the other one has a point."""
    answer, reference = (plain_digits(plain_characters(text), in_brackets=False) for text in (answer, reference))
    given, wanted = map(decimal_points, (answer, reference))
    is_one = given != answer if wanted == reference else given == answer and _HUNDREDTHS.search(reference) is not None
    if is_one and all(read_number(last_side(without_units(notation(text)))) for text in (given, wanted)):
        return notation(given), notation(wanted)
    return notation(answer), notation(reference)


class _Comparison:
    """Compares normalised texts, at points that `seed` determines."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._steps: dict[str, tuple[Step, ...] | None] = {}
        self._values: dict[tuple[str, int], complex | None] = {}
        self._left = MAX_COMPARISONS

    def same(self, one: str, other: str) -> bool:
        """Whether two answers or parts of answers are the same."""
        if one == other:
            return True
        self._left -= 1
        if self._left < 0 or self._are_of_different_names(one, other):
            return False
        given, wanted = split(one), split(other)
        if given.kind == wanted.kind == "equation" and self._same_relation(given, wanted):
            return True
        one, other = self._result(given, one), self._result(wanted, other)
        given, wanted = split(one), split(other)
        if (given.kind, given.shape) != (wanted.kind, wanted.shape) or (given.kind == "single" and "<" in one + other):
            return self._same_region(one, other)
        match given.kind:
            case "single":
                return self._same_quantity(one, other)
            case "equation":
                return False
            case "inequality":
                return self._same_relation(given, wanted)
            case "ordered":
                return len(given.parts) == len(wanted.parts) and all(map(self.same, given.parts, wanted.parts))
        return self._same_set(given.parts, wanted.parts)

    def _are_of_different_names(self, one: str, other: str) -> bool:
        """Whether both are constants, of variables of other names: `x=2` and `y=2` are different lines."""
        names = name_of(one), name_of(other)
        if not all(len(name) == 1 for name in names) or names[0] == names[1]:
            return False
        return all(read_number(without_units(last_side(text))) is not None for text in (one, other))

    def _result(self, parts: Parts, text: str) -> str:
        """The stated value: the right side of `x=5` and `2+3=5`."""
        if parts.kind == "equation":
            left, right = (None if (steps := self._read(side)) is None else number_of(steps) for side in parts.parts)
            if left is not None and right is not None and same_number(left, right):
                return parts.parts[1]
        return last_side(text)

    def _same_region(self, one: str, other: str) -> bool:
        """Whether a relation allows the values of an interval, a union of them, or another relation."""
        given, wanted = region_of(one), region_of(other)
        if given is None and wanted is None:
            return without_units(one) == without_units(other)
        return self.same(given or one, wanted or other)

    def _same_quantity(self, one: str, other: str) -> bool:
        """Whether values are the same, in units that agree."""
        units = ["%" if text.endswith("%") else unit_of(text) for text in (one, other)]
        if not agree(units[0], units[1]):
            return False
        one, other = without_units(one), without_units(other)
        return bool(one) and (one == other or self._same_value(one, other))

    def _same_set(self, parts: Sequence[str], wanted: Sequence[str]) -> bool:
        """Whether each part is another one of those wanted, in any order."""
        remaining = list(wanted)
        for part in parts:
            found = next((other for other in remaining if self.same(part, other)), None)
            if found is None:
                return False
            remaining.remove(found)
        return not remaining

    def _same_value(self, one: str, other: str) -> bool:
        written = read_number(one), read_number(other)
        if written[0] is not None and written[1] is not None:
            return same_written(written[0], written[1])
        numbers = [None if (steps := self._read(text)) is None else number_of(steps) for text in (one, other)]
        if numbers[0] is not None and numbers[1] is not None:
            return same_number(numbers[0], numbers[1])
        return _agree((self._at(one, point), self._at(other, point)) for point in range(NUM_POINTS))

    def _same_relation(self, given: Parts, wanted: Parts) -> bool:
        """Whether the differences of both sides are a multiple of each other, for inequalities a positive one."""
        if given.kind == "equation" and any(self._is_a_value(sides) for sides in (given, wanted)):
            return False
        both = [(self._difference(given, point), self._difference(wanted, point)) for point in range(NUM_POINTS)]
        ratios = [a / b for a, b in both if a is not None and b]
        if not ratios or not ratios[0] or (given.kind == "inequality" and not ratios[0].real > 0):
            return False
        return _agree((a, None if b is None else b * ratios[0]) for a, b in both)

    def _is_a_value(self, sides: Parts) -> bool:
        """Whether an equation says what a variable is."""
        left, right = sides.parts
        steps = self._read(right)
        return name_of(f"{left}=") != "" and steps is not None and number_of(steps) is not None

    def _difference(self, relation: Parts, point: int) -> complex | None:
        left, right = (self._at(without_units(side), point) for side in relation.parts)
        return None if left is None or right is None else left - right

    def _at(self, text: str, point: int) -> complex | None:
        """The value of an expression at a point; None where it has none."""
        if (text, point) not in self._values:
            steps = self._read(text)
            self._values[text, point] = None if steps is None else value(steps, partial(self._letter, point))
        return self._values[text, point]

    def _read(self, text: str) -> tuple[Step, ...] | None:
        """The steps of an expression; None for any other text, and for words."""
        if text not in self._steps:
            is_word = text.isalpha() and len(text) > 1 or _WORD.search(_COMMAND.sub("#", text)) is not None
            self._steps[text] = None if is_word else read(text)
        return self._steps[text]

    def _letter(self, point: int, name: str) -> complex:
        """A positive number, since letters often are; of either sign where absolute values depend on it."""
        size = 0.3 + 2.2 * draw(2**32, "letter", self._seed, point, name) / 2**32
        negative = "|" in self._seed and draw(2, "sign", self._seed, point, name) == 1
        return complex(-size if negative else size)


class _Answers(_Comparison):
    """Compares forms, too: `one` is an answer or a part of one, `other` the reference's."""

    def __init__(self, seed: str, asked: Asked | None) -> None:
        super().__init__(seed)
        self._asked = asked

    def _same_value(self, one: str, other: str) -> bool:
        if not super()._same_value(one, other):
            return False
        return is_in_form(one, other, self._asked, lambda: is_stated(other, self._asked))

    def _same_region(self, one: str, other: str) -> bool:
        if self._asked is not None and _statements_of(self._asked).have(one):
            return False
        return super()._same_region(one, other)

    def _same_relation(self, given: Parts, wanted: Parts) -> bool:
        if not super()._same_relation(given, wanted):
            return False
        is_solved = [len(relation.parts[0]) == 1 for relation in (given, wanted)]
        if wanted.kind == "equation" and self._asked and self._asked.asks_for_form and is_solved[0] != is_solved[1]:
            return False
        reference = ("=" if wanted.kind == "equation" else f"<{wanted.shape}").join(wanted.parts)
        return is_finished(given.parts, wanted.parts, lambda: is_stated(reference, self._asked))


class _Statements(_Comparison):
    """The expressions of a question, read once for all answers to it."""

    def __init__(self, asked: Asked) -> None:
        super().__init__("\n".join(asked.expressions))
        self._left = MAX_STATED
        self._expressions = asked.expressions
        self._known: dict[str, bool] = {}

    def have(self, reference: str) -> bool:
        """Whether one of them has a reference's value; true once there were too many comparisons."""
        if reference not in self._known:
            found = any(self.same(text, reference) for text in self._expressions) or self._left < 0
            if self._left < 0:
                return True
            self._known[reference] = found
        return self._known[reference]


@lru_cache(maxsize=NUM_QUESTIONS)
def _statements_of(asked: Asked) -> _Statements:
    return _Statements(asked)


def _agree(pairs: Iterable[tuple[complex | None, complex | None]]) -> bool:
    """Whether two expressions have the same values at all points, apart from rounding, and values at enough of them."""
    num_both = 0
    for one, other in pairs:
        if one is None or other is None:
            continue
        if not cmath.isclose(one, other, rel_tol=RELATIVE_TOLERANCE_OF_LETTERS, abs_tol=ABSOLUTE_TOLERANCE):
            return False
        num_both += 1
    return num_both >= MIN_POINTS
