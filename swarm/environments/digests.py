"""Digests that name questions and options, and the pure pseudo-random choices derived from them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from pydantic import JsonValue

from swarm.types import Prompt


def digest(*parts: str | int | None | Mapping[str, JsonValue]) -> str:
    """32 hexadecimal digits that depend on every part and its type, but not on the order of mapping keys."""
    canonical = msgspec.json.encode(parts, order="deterministic")
    return hashlib.blake2b(canonical, digest_size=16).hexdigest()


def content_digest(files: Iterable[Path]) -> str:
    """Digest of the contents of files, in this order. Raises `OSError`."""
    hashes = []
    for file in files:
        with file.open("rb") as opened:
            hashes.append(hashlib.file_digest(opened, "sha256").hexdigest())
    return digest("files", *hashes)


def draw(bound: int, *parts: str | int) -> int:
    """A pseudo-random integer in [0, bound), a pure function of `parts`."""
    return int(digest(*parts), 16) % bound


def question_hash(prompt: Prompt) -> str:
    """Digest of a question as it is asked, as `TaskRef.question_hash` carries it."""
    if isinstance(prompt, str):
        return digest("question", prompt)
    return digest("conversation", *(part for message in prompt for part in (message.role, message.content)))
