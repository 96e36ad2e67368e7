"""Other nodes on this machine."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import psutil

from nodes.boot.directory import IDENTITY_FILE
from swarm.telemetry.records import METRICS_FILE

LOCK_FILE = f"{IDENTITY_FILE}.lock"
LOOK_EVERY_S = 30.0


def running_nodes() -> dict[Path, int]:
    """Directory and process id of every node on this machine, or in this container, that this user may inspect.

    A running node holds the lock of its identity. This function looks up the holder instead of trying the lock: taking
    it, even briefly, could make a starting node fail.
    """
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            for file in process.open_files():
                path = Path(file.path)
                if path.name == LOCK_FILE and path.exists():
                    found[path.parent] = process.pid
    return dict(sorted(found.items()))


class Neighbours:
    """How many other nodes train on this machine; looked up at a limited rate, because it takes a while."""

    def __init__(self, out: Path) -> None:
        """Of the node in `out`."""
        self._out = out
        self._looked_at: float | None = None
        self._number = 0

    def number(self) -> int:
        """Not more than `LOOK_EVERY_S` ago."""
        if self._looked_at is None or time.monotonic() - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = time.monotonic()
            others = (folder for folder in running_nodes() if folder.resolve() != self._out.resolve())
            self._number = sum((folder / METRICS_FILE).exists() for folder in others)
        return self._number
