"""Limits of converting data sets."""

from __future__ import annotations

from msgspec import Struct

SMALL_BYTES = 64 * 2**20
"""Bytes that a data set may take, however small its files are."""
SMALL_MEMORY_BYTES = 512 * 2**20
"""Memory that it may take in addition to the libraries'."""
MEMORY_GROWTH = 8
"""Bytes of memory per byte of a file: JSON that is not in lines is read as a whole."""
UNFINISHED = ".incomplete"
"""Suffix of a folder in which `datasets` is still writing."""


class Limits(Struct, frozen=True):
    """Limits of converting data sets."""

    rows: int
    bytes: int
    """Bytes of one data set on the disk, downloaded and converted."""
    run_bytes: int
    """Bytes of all data sets together, from now on."""
    memory_bytes: int
    growth: int | None = None
    """Bytes on the disk per byte of an untrusted file; None for trusted ones."""

    def largest(self, stored: int) -> int:
        """Bytes on the disk for a data set with files of `stored` bytes."""
        own = self.bytes if self.growth is None else min(self.bytes, SMALL_BYTES + self.growth * stored)
        return min(own, self.run_bytes)

    def memory(self, stored: int) -> int:
        """Bytes of memory for a data set with files of `stored` bytes."""
        if self.growth is None:
            return self.memory_bytes
        return min(self.memory_bytes, SMALL_MEMORY_BYTES + MEMORY_GROWTH * stored)
