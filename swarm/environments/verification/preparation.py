"""Which data sets are on the disk, which are still to be put there, and which cannot be: known to the node itself.

A process converts them one after another. One that ends it, by a crash or by time, is left out, and another process
goes on with the rest.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from swarm.environments.config import DataSettings, StoredRows, TaskConfig
from swarm.environments.conversion.limits import UNFINISHED, Limits
from swarm.environments.sandbox.directories import caches
from swarm.environments.verification.messages import Prepared
from swarm.environments.verification.process import START_LIMIT_S
from swarm.machine import available_bytes

_ALL_ROWS = 2**62


class Preparation:
    """The data sets of a pool."""

    def __init__(self, configs: Sequence[TaskConfig], settings: DataSettings, foreign: bool) -> None:
        """`foreign`: they are those of a run's founder."""
        self.wanted = [config for config in configs if config.has_rows]
        """Tasks whose data sets are still to be put on the disk."""
        self.stored: dict[str, StoredRows] = {}
        """Rows, by task."""
        self.unprepared: dict[str, str] = {}
        """Why the other tasks have no rows."""
        self._settings = settings
        self._foreign = foreign
        self._answers = False
        """Whether the process has got as far as the data sets."""
        self._forgiven = ""
        """The task whose data set has ended a process once, perhaps by chance."""
        self._written = 0
        """Bytes, by earlier processes."""
        self._written_now = 0
        self._unfinished: Path | None = None
        self._began: float | None = None

    def begin(self) -> Limits:
        """For another process: a founder's data sets have the configured limits, own ones those of the machine."""
        self._answers = False
        self._began = self._began or time.monotonic()
        self._written, self._written_now = self._written + self._written_now, 0
        free, settings = shutil.disk_usage(caches()[1]).free, self._settings
        if not self._foreign:
            return Limits(_ALL_ROWS, free, free, max(available_bytes(), settings.memory_bytes))
        left = min(free, max(0, settings.run_bytes - self._written))
        return Limits(settings.rows, settings.bytes, left, settings.memory_bytes, settings.growth)

    def deadline(self) -> float:
        """Time at which the data set in progress is given up: a founder's have the limit together, own ones each."""
        began = self._began if self._foreign and self._began is not None else time.monotonic()
        return began + START_LIMIT_S

    def accept(self, prepared: Prepared) -> bool:
        """Note what the process says; False when it names files outside the cache."""
        files = [Path(part.path) for rows in prepared.stored.values() for part in rows.files]
        unfinished = Path(prepared.unfinished) if prepared.unfinished else None
        if not all(map(_is_in_cache, files)) or not (unfinished is None or _is_in_cache(unfinished)):
            return False
        self._answers, self._written_now = True, max(self._written_now, prepared.written)
        self.stored |= prepared.stored
        self._leave_out(prepared.unprepared)
        self._unfinished = unfinished
        return True

    def give_up(self, reason: str, late: bool) -> bool:
        """Leave out the data set that has ended the process, at the second time or by being `late`.

        All the time is a founder's at most once: then those behind it are left out as well. Returns False if the
        process never got as far as a data set.
        """
        self._sweep()
        if not (self._answers and self.wanted):
            return False
        if late or self.wanted[0].name == self._forgiven:
            lost = self.wanted if late and self._foreign else self.wanted[:1]
            why = "its data set cannot be converted here: it takes too much memory or time, or its files are broken"
            self._leave_out({config.name: f"task {config.name!r}: {why}; {reason}" for config in lost})
        else:
            self._forgiven = self.wanted[0].name
        return True

    def _sweep(self) -> None:
        """Remove what the last conversion left behind."""
        if self._unfinished is not None and self._unfinished.suffix == UNFINISHED:
            shutil.rmtree(self._unfinished, ignore_errors=True)
        self._unfinished = None

    def _leave_out(self, unprepared: dict[str, str]) -> None:
        self._sweep()
        self.unprepared |= unprepared
        done: Collection[str] = self.stored.keys() | self.unprepared.keys()
        self.wanted = [config for config in self.wanted if config.name not in done]


def _is_in_cache(path: Path) -> bool:
    cache = caches()[1]
    inside = path.is_relative_to(cache) and ".." not in path.parts
    return inside and path.resolve().is_relative_to(cache.resolve())
