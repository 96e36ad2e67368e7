"""What a tool is, and how a policy calls one."""

from __future__ import annotations

from typing import Protocol

OPEN, CLOSE = "<tool>", "</tool>"
MAX_CALL_CHARS = 8_192
TOO_LONG = f"error: a call must be at most {MAX_CALL_CHARS} characters"


class Tool(Protocol):
    """A pure function of text, in every process and on every machine: receivers call it again."""

    @property
    def version(self) -> str:
        """Names all that the results depend on."""
        ...

    def run(self, call: str) -> str:
        """The result of a call of at most `MAX_CALL_CHARS`, or what is wrong with it.

        The call may be a stranger's text: this process must never evaluate it.
        """
        ...


def last_call(turn: str) -> str | None:
    """What is in the last closed `<tool>` pair of a turn; None without one."""
    end = turn.rfind(CLOSE)
    start = turn.rfind(OPEN, 0, end) if end >= 0 else -1
    return turn[start + len(OPEN) : end].strip() if start >= 0 else None
