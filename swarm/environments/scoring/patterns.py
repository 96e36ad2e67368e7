r"""Untrusted regular expressions on untrusted text: RE2 through pyarrow, a dependency of `datasets`.

RE2 compiles a pattern to an automaton and never backtracks: a search takes time proportional to the text's length times
the automaton's size (https://github.com/google/re2/wiki/WhyRE2), and both are bounded here. To find all matches, one
after another, would take quadratic time, so that two searches find the last one: the first ends where the match that
begins last ends, the second begins as early as a match with this end can.
"""

from __future__ import annotations

import pyarrow
import pyarrow.compute

from swarm.errors import TaskError

MAX_SEARCHED_CHARS = 4_096
"""Characters at the end of a text that a pattern sees."""

_FOUND = "\x00"
"""Precedes what a search finds: a replacement leaves a text without a match unchanged."""


class LinearPattern:
    """A compiled pattern."""

    def __init__(self, pattern: str) -> None:
        """Raises `TaskError` for a pattern that RE2 does not accept."""
        try:
            _replace("", pattern, r"\0")  # alone: the patterns below could make a wrong one valid
            self._up_to_end = rf"\A((?s:.*)(?:{pattern}))(?s:.*)\z"
            self._at_end = rf"\A(?s:.*?)({pattern})\z"
            for whole in (self._up_to_end, self._at_end):
                _replace("", whole, r"\0")
        except pyarrow.ArrowInvalid as error:
            raise TaskError(f"pattern {pattern!r}: {error}; it must be in RE2's syntax") from error
        self._answer = r"\2" if _has_group(pattern) else r"\1"

    def last(self, text: str) -> str | None:
        """Group 1 of the last match, or the match if the pattern has no group; None without one, or if it is empty."""
        searched = text[-MAX_SEARCHED_CHARS:].replace(_FOUND, "")
        up_to_end = _search(searched, self._up_to_end, r"\1")
        return None if up_to_end is None else _search(up_to_end, self._at_end, self._answer)


def _search(text: str, pattern: str, answer: str) -> str | None:
    """The part `answer` of a pattern's match, which must be of the whole text; None without any."""
    found = _replace(text, pattern, _FOUND + answer)
    return found.removeprefix(_FOUND) or None if found.startswith(_FOUND) else None


def _has_group(pattern: str) -> bool:
    try:
        _replace("", pattern, r"\1")
    except pyarrow.ArrowInvalid:
        return False
    return True


def _replace(text: str, pattern: str, replacement: str) -> str:
    texts = pyarrow.array([text], pyarrow.string())
    replaced = pyarrow.compute.replace_substring_regex(texts, pattern=pattern, replacement=replacement)
    return str(replaced[0].as_py())
