"""What readers of rows share: tables of bounded size, and the place of the reason why a row could not be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow

UNREADABLE = "__unreadable__"
"""A column with the reason why a row could not be read, or nothing."""
UTF8_MARK = b"\xef\xbb\xbf"
_BATCH_ROWS, _BATCH_BYTES = 1_024, 2**20

T = TypeVar("T")


def text_table(builder: Any, columns: Mapping[str, list[str | None]], reasons: Sequence[str | None]) -> pyarrow.Table:
    """Texts by column; a row with one that was not in UTF-8 loses them all."""
    schema = builder.info.features.arrow_schema
    unreadable = list(reasons)
    for values in columns.values():
        for place, value in enumerate(values):
            if value is not None and not value.isascii() and (bad := _escaped(value)) is not None:
                unreadable[place] = not_utf8(bad)
    for place, reason in enumerate(unreadable):
        if reason is not None:
            for values in columns.values():
                values[place] = None
    return pyarrow.Table.from_pydict({**columns, UNREADABLE: unreadable}, schema=schema)


def _escaped(text: str) -> int | None:
    """The first byte that `surrogateescape` could not read; None if all is UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return ord(text[error.start]) & 0xFF
    return None


def is_utf8(config: Any) -> bool:
    """Whether a builder reads its files as UTF-8."""
    return (getattr(config, "encoding", None) or "utf-8").lower().replace("_", "-") in ("utf-8", "utf8")


def not_utf8(byte: int, encoding: str = "utf-8") -> str:
    """The reason."""
    return f"it has a byte that is not {encoding.upper()}: 0x{byte:02X}"


def batches(rows: Iterable[tuple[T, int]]) -> Iterator[list[tuple[T, int]]]:
    """Of bounded number and bytes."""
    batch: list[tuple[T, int]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += row[1]
        if len(batch) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
