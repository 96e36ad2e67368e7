"""Multiple choice: how a question lists its choices, and whether an answer names the right one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_uppercase

from msgspec import Struct

from swarm.environments.answering import MatchRule
from swarm.environments.digests import draw
from swarm.environments.scoring.grading import exact, matches
from swarm.environments.scoring.notation import plain_text

_LETTER = re.compile(r"[(\[]?([A-Z])(?:[)\].:](?:\s+(?P<text>.*))?)?", re.ASCII | re.DOTALL | re.IGNORECASE)


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
