"""Words of strangers, made fit to be shown: on a terminal, on a page, in a log.

Names are held to a pattern where they enter, in `swarm/net/records/wire.py`. This is for where anything is shown: no
control or escape sequence, no character that turns or hides others, no line of its own, not long.
"""

from __future__ import annotations

import logging
import re

NAME_CHARS = r"A-Za-z0-9 ._:/+@=()~-"
"""What names of tasks, models, roles and versions are made of: nothing that a terminal, a page or markup acts upon."""
MAX_CLEAN_CHARS = 500


def is_name(text: str, max_chars: int) -> bool:
    """Whether a text is a name: 1 to `max_chars` of `NAME_CHARS`."""
    return len(text) <= max_chars and re.fullmatch(f"[{NAME_CHARS}]+", text) is not None


def clean(text: str, max_chars: int = MAX_CLEAN_CHARS) -> str:
    """A stranger's words in one line of at most `max_chars` printable characters."""
    printable = text[: max_chars + 1]
    if not printable.isprintable():
        printable = "".join(char if char.isprintable() else "?" for char in printable)
    return printable if len(printable) <= max_chars else f"{printable[: max_chars - 2]}.."


def clean_lines(text: str) -> str:
    """Our own words with strangers' among them: printable, whatever their length; its lines stay."""
    return "\n".join(clean(line, max(2, len(line))) for line in text.split("\n"))


class CleanFormatter(logging.Formatter):
    """Log lines, tracebacks included, as `clean_lines` shows them."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, or lines."""
        return clean_lines(super().format(record))
