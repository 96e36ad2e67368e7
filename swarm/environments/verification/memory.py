"""The memory that a worker's tasks take, measured from within its sandbox."""

from __future__ import annotations

import gc
import os
from contextlib import suppress

from swarm.environments.sources.lru import forget_all

MEMORY_FILE = "/proc/self/statm"


class TaskMemory:
    """Memory of this process beyond what it had before its tasks were set up; memory-mapped rows do not count."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: for all tasks. The sandbox refuses to open the file that tells it, so do this before."""
        self.max_bytes = max_bytes
        self._file = -1
        with suppress(OSError):  # only Linux has it; without it, nothing is bounded here
            self._file = os.open(MEMORY_FILE, os.O_RDONLY)
        self._before = 0
        self._forget_at = max_bytes

    def begin(self) -> None:
        """What there is now is none of the tasks'."""
        self._before = self._own()

    def used(self) -> int:
        """Bytes that came since; 0 if unknown."""
        return max(0, self._own() - self._before)

    def forget_if_full(self) -> None:
        """Drop what sources keep of questions once the tasks take too much; it is made again when it is needed.

        What they cannot do without stays, and the next time is when half as much has come to it.
        """
        if self.used() > self._forget_at:
            forget_all()
            gc.collect()
            self._forget_at = max(self.max_bytes, self.used() + self.max_bytes // 2)

    def _own(self) -> int:
        if self._file < 0:
            return 0
        _, resident, shared, *_ = map(int, os.pread(self._file, 256, 0).split())
        return (resident - shared) * os.sysconf("SC_PAGESIZE")
