"""How far a node's newest snapshot is, for people: `OUT/snapshot.json`, written while the node runs."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from swarm.files import replace_file

PROGRESS_FILE = "snapshot.json"
MAX_BYTES = 2**16


class Progress(Struct, frozen=True):
    """Progress of the newest snapshot on this node."""

    version: int
    fraction: float
    source: str | None
    """The peer that it is fetched from."""
    feeds: tuple[str, ...]
    """The peers that it is sent to."""


def write_progress(out: Path, progress: Progress) -> None:
    """Replace the file of a node's directory. Raises `OSError`."""
    replace_file(out / PROGRESS_FILE, msgspec.json.encode(progress))


def read_progress(out: Path) -> Progress | None:
    """What the file says; None without one, or when it cannot be read."""
    try:
        with (out / PROGRESS_FILE).open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=Progress)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
