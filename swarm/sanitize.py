"""Sanitize foreign text before it reaches a terminal, a page or a log.

`swarm/net/records/wire.py` checks names against a pattern on arrival. This module protects output: no control or escape
sequences, no bidirectional or invisible characters, no line breaks, bounded length.
"""

from __future__ import annotations

import logging
import re

NAME_CHARS = r"A-Za-z0-9 ._:/+@=()~-"
"""Characters allowed in names of tasks, models, roles and versions: none has a meaning to a terminal or to markup."""
MAX_CLEAN_CHARS = 500
_NAME = re.compile(f"[{NAME_CHARS}]+")


def is_name(text: str, max_chars: int) -> bool:
    """Whether a text is a name: 1 to `max_chars` characters of `NAME_CHARS`."""
    return len(text) <= max_chars and _NAME.fullmatch(text) is not None


def clean(text: str, max_chars: int = MAX_CLEAN_CHARS) -> str:
    """Foreign text as one line of at most `max_chars` printable characters."""
    printable = text[: max_chars + 1]
    if not printable.isprintable():
        printable = "".join(char if char.isprintable() else "?" for char in printable)
    return printable if len(printable) <= max_chars else f"{printable[: max_chars - 2]}.."


def clean_lines(text: str) -> str:
    """Our own text that quotes foreign text: made printable; length and line breaks stay."""
    return "\n".join(clean(line, max(2, len(line))) for line in text.split("\n"))


class CleanFormatter(logging.Formatter):
    """Sanitizes log lines, tracebacks included, with `clean_lines`."""

    def format(self, record: logging.LogRecord) -> str:
        """The formatted line or lines."""
        return clean_lines(super().format(record))
