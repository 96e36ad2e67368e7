"""Inputs worth keeping: those that found a defect, and those that reach code which no other reaches."""

from __future__ import annotations

import hashlib
from pathlib import Path

FOLDER = Path(__file__).with_name("corpus")


def of_target(name: str) -> list[bytes]:
    """The kept inputs of a target, in the order of their names."""
    return [file.read_bytes() for file in sorted(folder_of(name).glob("*"))]


def keep(name: str, content: bytes) -> Path:
    """Keep an input; the same one twice is one file."""
    folder = folder_of(name)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / hashlib.blake2b(content, digest_size=8).hexdigest()
    file.write_bytes(content)
    return file


def folder_of(name: str) -> Path:
    """Where the inputs of a target are kept."""
    return FOLDER / name.replace(" ", "_")
