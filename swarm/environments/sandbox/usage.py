"""Disk and memory usage of this process, read from files that it opens before it is confined."""

from __future__ import annotations

import gc
import os
import resource
from contextlib import suppress

from swarm.environments.sources.lru import forget_all

WRITTEN, MEMORY = "wchar", "VmData"
TASK_MEMORY_FILE = "/proc/self/statm"
_CHUNK_BYTES = 8_192


class Usage:
    """Bytes written, and a limit on memory; without effect where the system keeps no such files."""

    def __init__(self) -> None:
        """Open the files."""
        self._files: dict[str, int] = {}
        for field, path in ((WRITTEN, "/proc/self/io"), (MEMORY, "/proc/self/status")):
            with suppress(OSError):  # not Linux
                self._files[field] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def written(self) -> int:
        """Bytes written so far by all threads, to any file; 0 if unknown."""
        return self._read(WRITTEN) or 0

    def limit_memory(self, more_bytes: int) -> None:
        """Limit this process to its present memory and `more_bytes`, until the next call."""
        if (kibibytes := self._read(MEMORY)) is None:
            return
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = 1024 * kibibytes + more_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))

    def _read(self, field: str) -> int | None:
        if field not in self._files:
            return None
        lines = os.pread(self._files[field], _CHUNK_BYTES, 0).decode().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), None)


class TaskMemory:
    """Memory of this process beyond what it had before its tasks were set up; memory-mapped rows do not count."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: for all tasks. Make it before the sandbox, which refuses to open the file."""
        self.max_bytes = max_bytes
        self._file = -1
        with suppress(OSError):  # only Linux has it; without it, nothing is bounded here
            self._file = os.open(TASK_MEMORY_FILE, os.O_RDONLY)
        self._before = 0
        self._forget_at = max_bytes

    def begin(self) -> None:
        """Count from here on."""
        self._before = self._own()

    def used(self) -> int:
        """Bytes since `begin`; 0 if unknown."""
        return max(0, self._own() - self._before)

    def forget_if_full(self) -> None:
        """Drop the sources' caches once the tasks take too much memory.

        If that does not free enough, the next time is when half of `max_bytes` has been added.
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
