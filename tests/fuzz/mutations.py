"""Changes that break parsers."""

from __future__ import annotations

import random

BOMBS = (
    b"\xdd\xff\xff\xff\xff",  # MessagePack: an array, a map, bytes and text of four billion
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\x91" * 2_000,  # arrays and maps in one another
    b"\x81\xa1a" * 2_000,
    b"\xc7\xff\x01",
    b"\xff\xfe\xed",
    b"[" * 3_000,  # the same as text
    b'{"a":' * 3_000,
    b"(" * 1_000,
    b"9" * 5_000,
    b"1e999",
    b"-0.0",
    b"NaN",
    b"\xed\xa0\x80",  # a lone surrogate
    "\u202e\u0660\u00bd\u00b2".encode(),  # direction, digits that int() takes and some that it refuses
    b"\x00",
)


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Content with one to four changes."""
    found = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(found) + 1)
        kind = chance.randrange(6)
        if kind == 0 and at < len(found):
            found[at] = chance.randrange(256)
        elif kind == 1:
            found[at:at] = chance.choice(BOMBS)
        elif kind == 2:
            del found[at : at + chance.randrange(40)]
        elif kind == 3:
            found[at:at] = found[chance.randrange(len(found) + 1) :][:200]
        elif kind == 4:
            found[at : at + 8] = chance.randbytes(8)
        elif chance.random() < 0.2:
            del found[at:]
    return bytes(found)
