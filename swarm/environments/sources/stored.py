"""Where the rows of a data set task lie on this disk, once they have been downloaded and converted."""

from __future__ import annotations

from msgspec import Struct


class FileRows(Struct, frozen=True):
    """Some adjacent rows of one Arrow file."""

    path: str
    first: int
    count: int


class StoredRows(Struct, frozen=True):
    """All rows of a task's split, in order."""

    files: tuple[FileRows, ...]
    revision: str
    """As in `DatasetRef`."""
