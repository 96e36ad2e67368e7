"""What killed nodes left among the temporary files goes; what others use stays."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm.net.hivemind.daemon import PREFIX, STALE_AFTER_S, make_folder


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # a socket's path has about a hundred characters
        monkeypatch.setattr(tempfile, "tempdir", short)
        yield Path(short)


def listened(folder: Path, name: str) -> socket.socket:
    folder.mkdir(exist_ok=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / name))
    server.listen()
    return server


def grow_old(folder: Path) -> None:
    before = folder.stat().st_mtime - STALE_AFTER_S - 1
    os.utime(folder, (before, before))


def test_what_killed_nodes_left_is_removed(place: Path) -> None:
    left = place / f"{PREFIX}left"
    for name in ("control.sock", "streams.sock"):
        listened(left, name).close()
    empty = place / f"{PREFIX}empty"
    empty.mkdir()
    for folder in (left, empty):
        grow_old(folder)
    made = make_folder()
    assert list(place.iterdir()) == [made]
    assert made.stat().st_mode & 0o077 == 0


def test_what_is_in_use_young_or_unknown_stays(place: Path) -> None:
    used, young, unknown = (place / f"{PREFIX}{name}" for name in ("used", "young", "unknown"))
    listened(used, "control.sock").close()
    with listened(used, "streams.sock"):
        listened(young, "control.sock").close()
        unknown.mkdir()
        (unknown / "notes.txt").write_text("not a socket")
        other = place / "another-program"
        listened(other, "control.sock").close()
        for folder in (used, unknown, other):
            grow_old(folder)
        make_folder()
    assert {path.name for path in used.iterdir()} == {"control.sock", "streams.sock"}
    assert young.exists() and (unknown / "notes.txt").exists() and other.exists()
