"""Compares an answer with a reference: as text, number, boxed mathematics, or one of several choices.

Pure functions on untrusted text: nothing is evaluated as code, every pattern runs in linear time on any input, and
unreadable text is a wrong answer, never an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_uppercase

from msgspec import Struct

from swarm.environments.answering import MatchRule
from swarm.environments.digests import draw
from swarm.environments.scoring.forms import Asked, asked_in, fits
from swarm.environments.scoring.mathematics import is_answer, is_stated
from swarm.environments.scoring.notation import MAX_CHARS, normalise, plain_characters, plain_text
from swarm.environments.scoring.shapes import shape_of
from swarm.environments.scoring.statements import boxed_content
from swarm.environments.scoring.written import Written, last_written, numbers, read_number, same_written

_UNIT = r"[^\W\d_]{0,12}"
_ALTERNATIVE = re.compile(rf"\s*{_UNIT}\s*(?:or|\|)\s*(?:(?:maybe|perhaps|possibly)\s+|[a-z]\s*=\s*)?", re.IGNORECASE)
"""Text between a number and an alternative to it."""
_SEPARATOR = re.compile(
    rf"\s*{_UNIT}\s*(?:,|;|and|to|through|[-–—~±]|\\pm|\.\.\.?)\s*(?:[a-z]\s*=\s*)?|[ \t]*", re.IGNORECASE
)
"""Text between the numbers of a list or the ends of a range."""
_MAX_LIST_CHARS = 64
"""Longest answer that could be a bare list of numbers."""
_LETTER = re.compile(r"[(\[]?([A-Z])(?:[)\].:](?:\s+(?P<text>.*))?)?", re.ASCII | re.DOTALL | re.IGNORECASE)


def matches(rule: MatchRule, answer: str, reference: str, question: str | None = None) -> bool:
    """Whether an answer matches the reference under the rule, and does not merely repeat the question, if given."""
    if rule == "exact":
        return exact(answer, reference)
    asked = None if question is None else asked_in(question)
    return (_is_number_asked_for if rule == "numeric" else is_answer)(answer, reference, asked)


def exact(answer: str, reference: str) -> bool:
    """Equal, ignoring case, white space, and how characters are encoded (`plain_characters`)."""
    one, other = (" ".join(plain_characters(text).split()).casefold() for text in (answer, reference))
    return one == other


def numeric(answer: str, reference: str) -> bool:
    """The last numbers of both are equal: integers exactly, others within a relative 1e-6.

    A percentage equals its fraction and, because the sign is often omitted, its bare number.
    """
    given, wanted = last_number(answer), last_number(reference)
    return given is not None and wanted is not None and same_written(given, wanted)


def last_number(text: str) -> Written | None:
    r"""The last number in a text, or in its last `\boxed{}`; None when there is none or it is not finite."""
    return last_written(_content(text))


def _is_number_asked_for(answer: str, reference: str, asked: Asked | None) -> bool:
    """Whether the last numbers are equal, and the answer's is one and not a part of a sum, a list or a range."""
    given, wanted = last_number(answer), last_number(reference)
    if given is None or wanted is None or not same_written(given, wanted):
        return False
    content = _content(answer)
    if _is_calculation(content) or _is_one_of_several(content):
        return False
    return fits(given, wanted, asked, lambda: is_stated(normalise(_content(reference)), asked))


def _is_calculation(text: str) -> bool:
    """Whether a text is nothing but an expression of numbers that is not carried out."""
    if len(text) > MAX_CHARS:
        return False
    plain = normalise(text)
    shape = shape_of(plain)
    return shape is not None and shape.value is not None and read_number(plain) is None


def _is_one_of_several(text: str) -> bool:
    """Whether the last number is an alternative to the one before it, or the end of a list of numbers or of a range."""
    found = list(numbers(plain_text(text)))[-2:]
    if len(found) < 2:
        return False
    between = found[0].string[found[0].end() : found[1].start()]
    is_list = len(text) <= _MAX_LIST_CHARS and _SEPARATOR.fullmatch(between) is not None
    return is_list or _ALTERNATIVE.fullmatch(between) is not None


def _content(text: str) -> str:
    box = boxed_content(text)
    return text if box is None else box


class Choices(Struct, frozen=True):
    """A question's choices, in the order in which they are listed."""

    texts: tuple[str, ...]
    """2 to 26, from A on."""
    right: int
    """Position of the right one."""

    def shuffled(self, seed: int, row: int) -> Choices:
        """The same choices in an order that depends on (seed, row) alone."""
        order = list(range(len(self.texts)))
        for last in range(len(order) - 1, 0, -1):
            other = draw(last + 1, "choices", seed, row, last)
            order[last], order[other] = order[other], order[last]
        return Choices(tuple(self.texts[position] for position in order), order.index(self.right))

    def listed(self) -> str:
        """One line for each: `A. text`."""
        return "\n".join(f"{letter}. {text}" for letter, text in zip(ascii_uppercase, self.texts, strict=False))

    def are_answered_by(self, answer: str, rule: MatchRule, question: str | None = None) -> bool:
        """Whether an answer is the right choice's letter, its text under the rule, or both.

        What could be a letter is read as one; a letter with another choice's text is wrong.
        """
        found = _LETTER.fullmatch(plain_text(answer).strip())
        chosen = ascii_uppercase.index(found[1].upper()) if found is not None else len(self.texts)
        if found is None or chosen >= len(self.texts):
            return matches(rule, answer, self.texts[self.right], question)
        return chosen == self.right and (not found["text"] or exact(found["text"], self.texts[chosen]))


def position(answer: str, *namings: Sequence[str]) -> int | None:
    """The choice that a row's answer names in one of the namings, by index; None for no choice or several."""
    named = {index for names in namings for index, name in enumerate(names) if exact(name, answer)}
    return named.pop() if len(named) == 1 else None
