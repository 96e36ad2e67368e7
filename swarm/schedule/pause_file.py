"""What a person asked with `swarm pause`: a file in the node's directory, which a restart finds again."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from swarm.files import replace_file

PAUSE_FILE = "pause.json"
MAX_BYTES = 1_024


class AskedPause(Struct, frozen=True):
    """A pause that `swarm resume` ends."""

    until: float | None = None
    """Unix seconds; None for no end."""


def ask(out: Path, pause: AskedPause) -> None:
    """Have the node of a directory pause. Raises `OSError`."""
    replace_file(out / PAUSE_FILE, msgspec.json.encode(pause), mode=0o644)  # perhaps by root, for another user's node


def withdraw(out: Path) -> bool:
    """End the pause that was asked for; whether there was one. Raises `OSError`."""
    there = (out / PAUSE_FILE).exists()
    (out / PAUSE_FILE).unlink(missing_ok=True)
    return there


def asked(out: Path, now: float) -> AskedPause | None:
    """The pause that holds at `now`, in Unix seconds; a file that cannot be read asks for one without an end."""
    try:
        with (out / PAUSE_FILE).open("rb") as file:
            text = file.read(MAX_BYTES)
    except FileNotFoundError:
        return None
    try:
        pause = msgspec.json.decode(text, type=AskedPause)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return AskedPause()
    return None if pause.until is not None and pause.until <= now else pause
