"""What all decoders do with a file before they read it, and what they say of one that is not as it should be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

MAX_FILE_BYTES = 2**25
"""Of a picture, sound or clip as it is stored."""
MAX_PROBLEM_CHARS = 200
_HANDLE = re.compile(r"<_io\.BytesIO[^>]*>|'?<none>'?")
"""What libraries call a file that is in memory."""


class Undecodable(Exception):
    """A file that is refused: the message says why."""


@contextmanager
def decoding(file: bytes, what: str) -> Iterator[None]:
    """Whatever a library raises on a file in this block is a reason to refuse the file: `Undecodable`."""
    if not file:
        raise Undecodable(f"{what}: the file is empty")
    if len(file) > MAX_FILE_BYTES:
        raise Undecodable(f"{what}: the file has {len(file)} bytes, more than {MAX_FILE_BYTES}")
    try:
        yield
    except Undecodable as error:
        raise Undecodable(f"{what}: {error}") from error
    except Exception as error:  # many readers of many formats, on foreign input
        said = " ".join(_HANDLE.sub("", f"{type(error).__name__}: {error}").split())
        raise Undecodable(f"{what}: {said[:MAX_PROBLEM_CHARS]}") from error
