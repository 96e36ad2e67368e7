"""The thought before an answer, in texts.

Models mark their thoughts in many ways, which `swarm/policy/thinking.py` reads. A text that is shared, graded or shown
has one pair of marks: `<think>`, the thought, `</think>`, the answer.
"""

from __future__ import annotations

from typing import NamedTuple

OPEN, CLOSE = "<think>", "</think>"


class Parts(NamedTuple):
    """What a policy said in one turn."""

    thought: str | None
    """None where it has not thought."""
    answer: str | None
    """None where the thought has no end."""


def parts_of(text: str) -> Parts:
    """Thought and answer. The opening mark may be missing, because many chat templates write it into the prompt."""
    begun = text.lstrip()
    if begun.startswith(OPEN):
        thought, mark, answer = begun[len(OPEN) :].partition(CLOSE)
        return Parts(thought, answer if mark else None)
    thought, mark, answer = text.partition(CLOSE)
    return Parts(thought, answer) if mark else Parts(None, text)


def answer_of(text: str) -> str:
    """What follows the thought, which is all that a verifier reads; empty where the thought has no end."""
    return parts_of(text).answer or ""


def thought_of(text: str) -> str:
    """The thought; empty without one."""
    return parts_of(text).thought or ""
