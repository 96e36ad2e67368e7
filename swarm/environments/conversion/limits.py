"""How much may be made of a data set."""

from __future__ import annotations

from msgspec import Struct

SMALL_BYTES = 64 * 2**20
"""What a data set may take, however small its files are."""
SMALL_MEMORY_BYTES = 512 * 2**20
"""The same for memory, beside what the libraries take."""
MEMORY_GROWTH = 8
"""Bytes of memory for one of a file: JSON is read as a whole where it is not by lines."""
UNFINISHED = ".incomplete"
"""How `datasets` ends the name of a folder that it is not done with."""


class Limits(Struct, frozen=True):
    """What converting data sets may take."""

    rows: int
    bytes: int
    """Of one of them on the disk, downloaded and converted."""
    run_bytes: int
    """Of all of them together, from now on."""
    memory_bytes: int
    growth: int | None = None
    """Bytes on the disk for one of a file, where these are a stranger's; None where there is no such limit."""

    def largest(self, stored: int) -> int:
        """Bytes on the disk for a data set whose files have so many."""
        own = self.bytes if self.growth is None else min(self.bytes, SMALL_BYTES + self.growth * stored)
        return min(own, self.run_bytes)

    def memory(self, stored: int) -> int:
        """Bytes of memory for a data set whose files have so many."""
        if self.growth is None:
            return self.memory_bytes
        return min(self.memory_bytes, SMALL_MEMORY_BYTES + MEMORY_GROWTH * stored)
