"""Gemma's notation of a call's arguments: JSON whose keys and texts stand in quotes of its own, or in none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

from swarm.types.calls import MAX_CALL_DEPTH, SHAPE, TOO_DEEP, BadJson


class Notation:
    """Reads Gemma's notation of arguments, and writes it as JSON."""

    _word = re.compile(r"[^\s,:{}\[\]]+")
    _blank = re.compile(r"\s*")

    def __init__(self, text: str, quote: str) -> None:
        """`quote` is a mark of the template; `"` is read too."""
        self._text = text
        self._quote = quote
        self._at = 0

    def value(self) -> str:
        """The whole text as JSON. Raises `BadJson`."""
        found = self._value(MAX_CALL_DEPTH)
        self._skip()
        if self._at < len(self._text):
            raise BadJson(SHAPE)
        return found

    def _skip(self) -> None:
        match = self._blank.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _takes(self, text: str) -> bool:
        self._skip()
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _value(self, depth: int) -> str:
        if depth == 0:
            raise BadJson(TOO_DEEP)
        if self._takes("{"):
            members = list(self._items("}", lambda: f"{self._key()}: {self._value(depth - 1)}"))
            return "{" + ", ".join(members) + "}"
        if self._takes("["):
            return "[" + ", ".join(self._items("]", lambda: self._value(depth - 1))) + "]"
        return self._scalar()

    def _items(self, end: str, read: Callable[[], str]) -> Iterator[str]:
        if self._takes(end):
            return
        while True:
            yield read()
            if self._takes(end):
                return
            if not self._takes(","):
                raise BadJson(SHAPE)

    def _key(self) -> str:
        key = self._scalar(always_text=True)
        if not self._takes(":"):
            raise BadJson(SHAPE)
        return key

    def _scalar(self, always_text: bool = False) -> str:
        for quote in (self._quote, '"'):
            if self._takes(quote):
                end = self._text.find(quote, self._at)
                if end < 0:
                    raise BadJson(SHAPE)
                said, self._at = self._text[self._at : end], end + len(quote)
                return json.dumps(said, ensure_ascii=False)
        self._skip()
        word = self._word.match(self._text, self._at)
        if word is None:
            raise BadJson(SHAPE)
        self._at = word.end()
        if always_text:
            return json.dumps(word[0], ensure_ascii=False)
        return word[0]  # what is no number, true, false or null is refused with the whole
