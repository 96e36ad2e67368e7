"""What this process has written, and a limit on its memory, read from files that it opens before it is confined."""

from __future__ import annotations

import os
import resource
from contextlib import suppress

WRITTEN, MEMORY = "wchar", "VmData"
_CHUNK_BYTES = 8_192


class Usage:
    """Without effect where the system keeps no such files."""

    def __init__(self) -> None:
        """Open the files."""
        self._files: dict[str, int] = {}
        for field, path in ((WRITTEN, "/proc/self/io"), (MEMORY, "/proc/self/status")):
            with suppress(OSError):  # not Linux
                self._files[field] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def written(self) -> int:
        """Bytes so far, by all threads and to whatever; 0 where it is unknown."""
        return self._read(WRITTEN) or 0

    def limit_memory(self, more_bytes: int) -> None:
        """Let this process have so much more memory than now, until the next call."""
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
