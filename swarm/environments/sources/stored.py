"""Location of a data set task's rows on disk, after download and conversion."""

from __future__ import annotations

from msgspec import Struct


class FileRows(Struct, frozen=True):
    """Adjacent rows of one Arrow file."""

    path: str
    first: int
    count: int


class StoredRows(Struct, frozen=True):
    """All rows of a task's split, in order."""

    files: tuple[FileRows, ...]
    revision: str
    """As in `DatasetRef`."""
