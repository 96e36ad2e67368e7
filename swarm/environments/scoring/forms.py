"""Whether an answer of the right value is in the form of an answer, and does not repeat the question.

A question is a founder's text: a bounded number of characters and expressions is read, in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import cached_property, lru_cache

from swarm.environments.scoring.notation import at_top, normalise, sides
from swarm.environments.scoring.shapes import Shape, is_made_of, is_rational, shape_of, spread
from swarm.environments.scoring.written import Form, Written, all_written, form_of, read_number

MAX_CHARS = 16_384
"""Characters read of a question: half at its start, half at its end."""
MAX_EXPRESSIONS = 128
"""The first half and the last half of them."""
MAX_EXPRESSION_CHARS = 500

NUM_QUESTIONS = 8
"""Cached questions: a worker grades the completions of a group one after the other."""

_PERCENT = re.compile(r"%|per ?cent|\brates?\b", re.IGNORECASE)
_FACTOR = re.compile(r"factor", re.IGNORECASE)
_FORM = re.compile(r"\bforms?\b|solved? for", re.IGNORECASE)
_DELIMITED = re.compile(r"\$([^$]+)\$|\\[(\[]((?:(?!\\[()\[\]]).)*)\\[)\]]", re.DOTALL)
_END = re.compile(r"[\n?;:]|[.](?!\d)|\\(?:text\w*|mbox|mathrm)\s*\{[^{}]*\}")
"""End of an expression: punctuation and text."""
_WORD = re.compile(
    r"(?<![A-Za-z\\])(?!(?:sqrt|sin|cos|tan|log|ln|exp|pi)(?![A-Za-z]))"
    r"(?:[A-Za-z]{3,}|(?:am|an|as|at|be|by|do|go|he|if|in|is|it|me|my|no|of|on|or|so|to|up|us|we)(?![A-Za-z]))",
    re.IGNORECASE,
)
"""Outside of `$...$` also words; other pairs of letters are products."""
_LONG_WORD = re.compile(r"(?<![A-Za-z\\])(?!sqrt(?![A-Za-z]))[A-Za-z]{4,}")
"""Within `$...$`, which may be amounts of money with a sentence between them."""
OF_CONSTANTS = frozenset({"roots", "logarithms", "other functions"})
"""Work that the exact value of a rounded reference may have: `2\\pi` for 6.283185307."""
IsStated = Callable[[], bool]
"""Whether the question has an expression of the reference's value."""
UNFINISHED = frozenset({"arithmetic", "like terms", "like factors"})
"""Remaining work in an equation or inequality; other work is a matter of its form."""


class Asked:
    """Numbers and expressions of one question."""

    def __init__(self, question: str) -> None:
        """Read a question; of a long one, only the start and the end."""
        if len(question) > MAX_CHARS:
            question = f"{question[: MAX_CHARS // 2]}\n{question[-MAX_CHARS // 2 :]}"
        self._question = question

    @cached_property
    def is_in_percent(self) -> bool:
        """Whether it speaks of percentages."""
        return _PERCENT.search(self._question) is not None

    @cached_property
    def asks_for_factors(self) -> bool:
        """Whether it speaks of factors."""
        return _FACTOR.search(self._question) is not None

    @cached_property
    def asks_for_form(self) -> bool:
        """Whether it speaks of the form of an answer, such as that of an equation."""
        return _FORM.search(self._question) is not None

    @cached_property
    def _written(self) -> tuple[Written, ...]:
        return tuple(all_written(self._question))

    @cached_property
    def values(self) -> frozenset[int | float]:
        """Values of all numbers in it, numerators, denominators, bases and exponents included."""
        return frozenset(value for each in self._written for value in (each.value, *each.parts))

    def has(self, number: Written) -> bool:
        """Whether a number is written in it, in this form."""
        return form_of(number) in self._forms

    def has_value(self, value: float) -> bool:
        """Whether it has a number of this value."""
        return value in self.values

    def has_all(self, values: Iterable[int | float]) -> bool:
        """Whether its numbers include these."""
        return self.values.issuperset(values)

    @cached_property
    def _forms(self) -> frozenset[Form]:
        alone = (number for text in self.expressions if (number := read_number(text)) is not None)
        return frozenset(map(form_of, (*self._written, *alone)))

    @cached_property
    def expressions(self) -> tuple[str, ...]:
        """Normalised: each as a whole, and the parts between its commas and on the sides of its relations."""
        texts = [_WORD.sub("\n", _DELIMITED.sub("\n", self._question))]
        delimited = (next(filter(None, found.groups()), "") for found in _DELIMITED.finditer(self._question))
        texts += [_LONG_WORD.sub("\n", text) for text in delimited]
        runs = [run for text in texts for run in _END.split(text) if run.strip() and len(run) <= MAX_EXPRESSION_CHARS]
        half = MAX_EXPRESSIONS // 2
        kept = runs if len(runs) <= MAX_EXPRESSIONS else [*runs[:half], *runs[-half:]]
        return tuple(dict.fromkeys(part for run in kept for part in _parts(run) if part))

    def has_part(self, shape: Shape) -> bool:
        """Whether it has an expression of this shape, whatever its sign, or a number."""
        if shape.kind == "number":
            return float(Fraction(shape.key)) in self.values
        return shape.key.removeprefix("-") in self._keys

    @cached_property
    def _keys(self) -> frozenset[str]:
        return frozenset(
            shape.key.removeprefix("-") for text in self.expressions if (shape := shape_of(text)) is not None
        )


@lru_cache(maxsize=NUM_QUESTIONS)
def asked_in(question: str) -> Asked:
    """The question's facts, cached for the completions of a group."""
    return Asked(question)


def _parts(run: str) -> list[str]:
    whole = normalise(run.strip(" ,.!") + ("!" if re.search(r"[\w)}]!\s*$", run) else ""))
    return [whole, *(side for part in at_top(whole, ",") for side in sides(part))]


def is_in_form(given: str, wanted: str, asked: Asked | None, is_stated: IsStated) -> bool:
    """Whether a normalised expression of the reference's value is in the reference's form, or in one as finished.

    A number must be written as one. Where the question states the value, only the reference's own shape is an answer;
    elsewhere also others in which no more work is left. Without a question (`asked` None) nothing is a repetition.
    """
    number, reference = read_number(given), read_number(wanted)
    if number is not None:
        return fits(number, reference, asked, is_stated)
    one, other = shape_of(given), shape_of(wanted)
    if reference is not None and one is not None and reference.kind == "decimal" and one.value is not None:
        return not (is_rational(one.value) or one.work - OF_CONSTANTS or (asked is not None and is_stated()))
    if reference is not None or one is None or other is None:
        return False
    if one.key == other.key:
        return True
    if spread(one).key == spread(other).key:
        return asked is None or not asked.has_part(one)
    if is_rational(other.value) or (asked is not None and (is_stated() or _repeats(one, other, asked))):
        return False
    return one.work <= other.work


def is_finished(given: Sequence[str], wanted: Sequence[str], is_stated: IsStated) -> bool:
    """`is_in_form` for the sides of an equation or inequality, whose form is free unless the question states it."""
    ones, others = [shape_of(side) for side in given], [shape_of(side) for side in wanted]
    keys = [sorted("" if side is None else side.key for side in sides) for sides in (ones, others)]
    if keys[0] == keys[1]:
        return True
    work = [frozenset[str]().union(*(side.work for side in sides if side is not None)) for sides in (ones, others)]
    return not is_stated() and work[0] & UNFINISHED <= work[1]


def fits(given: Written, wanted: Written | None, asked: Asked | None, is_stated: IsStated) -> bool:
    """Whether a number of the right value is written as an answer, neither unfinished nor as it is in the question.

    `wanted` None is a reference that is not written as a number.
    """
    kind = None if wanted is None else wanted.kind
    if wanted is not None and form_of(given) == form_of(wanted):
        return True
    is_whole = wanted is not None and kind == "whole" and not wanted.is_percentage
    if given.kind in ("fraction", "mixed") and (is_whole or not given.is_of_whole_numbers):
        return False
    if asked is None:
        return True
    if given.is_percentage and not (asked.is_in_percent or (wanted is not None and wanted.is_percentage)):
        return False
    if given.kind == "power" or (wanted is None and asked.has_value(given.value)):
        return False
    if not given.is_reduced and (asked.has_all(given.parts) or is_stated()):
        return False
    if (
        given.kind == "scientific"
        and kind != "scientific"
        and asked.has_all((given.parts[0], float(f"1e{given.parts[1]}")))
    ):
        return False
    return kind == given.kind or not asked.has(given)


def _repeats(given: Shape, wanted: Shape, asked: Asked) -> bool:
    """Whether it only joins expressions of the question, or multiplies out where factors are asked for."""
    if is_made_of(given, asked.has_part) and not given.kind == wanted.kind == "sum":
        return True
    return asked.asks_for_factors and "products" in wanted.work and "products" not in given.work
