"""What a program in the interpreter says came of a test: read here, from text that is hostile."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import cast

from msgspec import Struct

from swarm.extras.wasm.code.guest import MAX_DEPTH, MAX_PARTS

_SINGLE = {"n": None, "t": True, "f": False}
_SEVERAL = frozenset("luezgm")
MAX_BITS = 14_284
"""Most bits of a whole number: Python converts it to text, which it refuses beyond 4300 digits."""
MAX_SAME_HASH = 64
"""Items of a set, or keys: of more with one hash, a set takes time with the square of their number."""


class Failed(Struct, frozen=True):
    """A test that came to no result."""

    reason: str


class Iterated(Struct, frozen=True):
    """The items of an iterator, a range or a view: equal to nothing, but a list can be made of it."""

    items: list[object]


class Opaque(Struct, frozen=True):
    """An object of a class of the program: equal to nothing."""

    name: str


class _Wrong(Exception):
    """The text is no value."""


def hashed(items: Iterable[object]) -> list[Hashable]:
    """Items for a set, or keys. Raises `TypeError` if one has no hash, `ValueError` if too many have the same."""
    found = cast(list[Hashable], list(items))
    if max(Counter(map(hash, found)).values(), default=0) > MAX_SAME_HASH:
        raise ValueError(f"more than {MAX_SAME_HASH} of its items have the same hash")
    return found


def read_value(text: str) -> object:
    """The value: of Python's own types, `Iterated`, `Opaque`, or `Failed` if the text is none or says so."""
    try:
        if text.startswith("x"):
            return Failed(bytes.fromhex(text[1:].partition(";")[0]).decode("utf-8", "replace"))
        reader = _Reader(text)
        value = reader.value(0)
        if not reader.is_at_end:
            raise _Wrong
        return value
    except (_Wrong, ValueError, TypeError, OverflowError):
        return Failed("its result cannot be read")


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._parts = MAX_PARTS

    @property
    def is_at_end(self) -> bool:
        return self._position == len(self._text)

    def value(self, depth: int) -> object:
        self._parts -= 1
        if self._parts < 0 or depth > MAX_DEPTH:
            raise _Wrong
        mark = self._next()
        if mark in _SINGLE:
            return _SINGLE[mark]
        if mark in _SEVERAL:
            return self._several(mark, depth + 1)
        end = self._text.find(";", self._position)
        if end < 0:
            raise _Wrong
        content, self._position = self._text[self._position : end], end + 1
        if mark == "i":
            number = int(content, 16)
            if number.bit_length() > MAX_BITS:
                raise _Wrong
            return number
        return _of_bytes(mark, bytes.fromhex(content))

    def _several(self, mark: str, depth: int) -> object:
        items = []
        while self._text[self._position : self._position + 1] != ")":
            items.append(self.value(depth))
        self._position += 1
        match mark:
            case "l":
                return items
            case "u":
                return tuple(items)
            case "e":
                return set(hashed(items))
            case "z":
                return frozenset(hashed(items))
            case "g":
                return Iterated(items)
        return dict(zip(hashed(items[::2]), items[1::2], strict=True))

    def _next(self) -> str:
        if self.is_at_end:
            raise _Wrong
        self._position += 1
        return self._text[self._position - 1]


def _of_bytes(mark: str, content: bytes) -> object:
    match mark:
        case "d" if len(content) == 8:
            number: float = struct.unpack("<d", content)[0]
            return number
        case "c" if len(content) == 16:
            return complex(*struct.unpack("<dd", content))
        case "s":
            return content.decode()
        case "b":
            return content
        case "o":
            return Opaque(content.decode())
    raise _Wrong
