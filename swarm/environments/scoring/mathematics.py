r"""Whether two final answers are the same mathematics: numbers, expressions, tuples, sets, matrices, equations.

Expressions with letters are compared at points that are derived from both texts, so that nobody can aim at them.
"""

from __future__ import annotations

import cmath
import math
import re
from collections.abc import Sequence
from functools import partial

from swarm.environments.digests import draw
from swarm.environments.scoring.latex import Parts, boxed_content, normalise, split, without_left_side
from swarm.environments.scoring.latex_values import to_number, value

RELATIVE_TOLERANCE = 1e-6
"""Of numbers, which may be rounded."""
RELATIVE_TOLERANCE_OF_LETTERS = 1e-9
"""Of expressions with letters: far above rounding errors, far below the effect of a wrong term."""
ABSOLUTE_TOLERANCE = 1e-12
"""Rounding errors of terms that cancel."""
NUM_POINTS = 8
MIN_POINTS = 4
"""Least number of points where both sides must have a value."""
MAX_COMPARISONS = 1_000
"""Of parts; beyond it answers differ."""
MAX_CHARS = 2_000
"""Of a normalised answer; longer ones must be equal as they are."""

_WORD = re.compile(r"(?<![a-z\\])[a-z]{4}")
_COMMAND = re.compile(r"\\[a-z]+")


def equivalent(answer: str, reference: str) -> bool:
    r"""Whether two answers are the same; either may include its `\boxed{}`."""
    given, wanted = (normalise(_unboxed(side)) for side in (answer, reference))
    if not given or not wanted:
        return False
    if given == wanted:
        return True
    short = max(len(given), len(wanted)) <= MAX_CHARS
    return short and _Comparison(f"{given}\n{wanted}").same(given, wanted)


def same_number(one: float, other: float) -> bool:
    """Integers exactly, others within a relative 1e-6."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    try:
        return math.isclose(one, other, rel_tol=RELATIVE_TOLERANCE)
    except OverflowError:  # an integer beyond the range of floats
        return False


class _Comparison:
    """Of normalised texts, at the points that `seed` determines."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._values: dict[str, list[complex | None]] = {}
        self._left = MAX_COMPARISONS

    def same(self, one: str, other: str) -> bool:
        """Whether two answers or parts of answers are the same."""
        one, other = without_left_side(one), without_left_side(other)
        if one == other:
            return True
        self._left -= 1
        given, wanted = split(one), split(other)
        if self._left < 0 or (given.kind, given.shape) != (wanted.kind, wanted.shape):
            return False
        match given.kind:
            case "single":
                return self._same_value(one, other)
            case "equation" | "inequality":
                return self._same_relation(given, wanted)
            case "ordered":
                return len(given.parts) == len(wanted.parts) and all(map(self.same, given.parts, wanted.parts))
        return self._same_set(given.parts, wanted.parts)

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
        numbers = to_number(one), to_number(other)
        if numbers[0] is not None and numbers[1] is not None:
            return same_number(numbers[0], numbers[1])
        return _agree(self._at_points(one), self._at_points(other))

    def _same_relation(self, given: Parts, wanted: Parts) -> bool:
        """Whether the differences of both sides are a multiple of each other, for inequalities a positive one."""
        left, right = self._difference(given), self._difference(wanted)
        ratios = [a / b for a, b in zip(left, right, strict=True) if a is not None and b]
        if not ratios or not ratios[0] or (given.kind == "inequality" and not ratios[0].real > 0):
            return False
        return _agree(left, [None if b is None else b * ratios[0] for b in right])

    def _difference(self, relation: Parts) -> list[complex | None]:
        left, right = map(self._at_points, relation.parts)
        return [None if a is None or b is None else a - b for a, b in zip(left, right, strict=True)]

    def _at_points(self, text: str) -> list[complex | None]:
        """[points] values of an expression; None where it has none, and everywhere for words."""
        if text not in self._values:
            is_word = text.isalpha() and len(text) > 1 or _WORD.search(_COMMAND.sub("#", text)) is not None
            points = range(NUM_POINTS)
            self._values[text] = [None if is_word else value(text, partial(self._letter, point)) for point in points]
        return self._values[text]

    def _letter(self, point: int, name: str) -> complex:
        """A positive number, since letters often are; of either sign where absolute values depend on it."""
        size = 0.3 + 2.2 * draw(2**32, "letter", self._seed, point, name) / 2**32
        negative = "|" in self._seed and draw(2, "sign", self._seed, point, name) == 1
        return complex(-size if negative else size)


def _agree(one: Sequence[complex | None], other: Sequence[complex | None]) -> bool:
    """Whether two expressions have the same values at all points, apart from rounding, and values at enough of them."""
    both = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    return len(both) >= MIN_POINTS and all(
        cmath.isclose(a, b, rel_tol=RELATIVE_TOLERANCE_OF_LETTERS, abs_tol=ABSOLUTE_TOLERANCE) for a, b in both
    )


def _unboxed(text: str) -> str:
    content = boxed_content(text)
    return text if content is None else content
