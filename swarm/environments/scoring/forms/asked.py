"""What a question has that an answer could repeat: its numbers as they are written, and its expressions.

The text is a founder's: it is read up to a number of characters and expressions, in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from functools import cached_property, lru_cache

from swarm.environments.scoring.forms.shapes import Shape, shape_of
from swarm.environments.scoring.forms.written import Form, Written, all_written, form_of, read_number
from swarm.environments.scoring.latex import sides
from swarm.environments.scoring.reading.notation import at_top, normalise

MAX_CHARS = 16_384
"""Read of a question: half of them at its start, the others at its end."""
MAX_EXPRESSIONS = 128
"""Half of them the first ones, the others the last ones."""
MAX_EXPRESSION_CHARS = 500

NUM_QUESTIONS = 8
"""Kept: a worker grades the completions of a group one after the other."""

_PERCENT = re.compile(r"%|per ?cent|\brates?\b", re.IGNORECASE)
_FACTOR = re.compile(r"factor", re.IGNORECASE)
_FORM = re.compile(r"\bforms?\b|solved? for", re.IGNORECASE)
_DELIMITED = re.compile(r"\$([^$]+)\$|\\[(\[]((?:(?!\\[()\[\]]).)*)\\[)\]]", re.DOTALL)
_END = re.compile(r"[\n?;:]|[.](?!\d)|\\(?:text\w*|mbox|mathrm)\s*\{[^{}]*\}")
"""What ends an expression: punctuation and text."""
_WORD = re.compile(
    r"(?<![A-Za-z\\])(?!(?:sqrt|sin|cos|tan|log|ln|exp|pi)(?![A-Za-z]))"
    r"(?:[A-Za-z]{3,}|(?:am|an|as|at|be|by|do|go|he|if|in|is|it|me|my|no|of|on|or|so|to|up|us|we)(?![A-Za-z]))",
    re.IGNORECASE,
)
"""Outside of `$...$` also words; other pairs of letters are products."""
_LONG_WORD = re.compile(r"(?<![A-Za-z\\])(?!sqrt(?![A-Za-z]))[A-Za-z]{4,}")
"""Within `$...$`, which may be amounts of money with a sentence between them."""


class Asked:
    """What is to be known of one question."""

    def __init__(self, question: str) -> None:
        """Of a long question only the start and the end are read."""
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
        """Of all numbers in it, numerators, denominators, bases and exponents included."""
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
    """The same for all completions of a group."""
    return Asked(question)


def _parts(run: str) -> list[str]:
    whole = normalise(run.strip(" ,.!") + ("!" if re.search(r"[\w)}]!\s*$", run) else ""))
    return [whole, *(side for part in at_top(whole, ",") for side in sides(part))]
