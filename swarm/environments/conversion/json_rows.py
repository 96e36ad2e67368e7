"""Files of JSON: a row a line, or a list of rows.

A column whose values are of several types, or of integers that Arrow has no type for, is stored as JSON.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, BinaryIO

import datasets
import pyarrow
from datasets.utils.file_utils import xopen

from swarm.environments.conversion.rows import UNREADABLE, UTF8_MARK, batches, not_utf8
from swarm.errors import TaskError

MAX_COLUMNS = 4_096
_MAX_DIGITS = 4_000
"""Longer integers stay text; Python refuses to write them."""

Read = Mapping[str, object] | str
"""A row, or why it could not be read."""
Count = Callable[[int], None]
"""Is told how many bytes have been read; raises `TaskError` at a limit."""


def read_json(text: str | bytes) -> object:
    """JSON with integers of any size. Raises `ValueError`, and `RecursionError` for lists in lists in lists."""
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < _MAX_DIGITS else digits)


def json_features(count: Count, builder: Any, files: Sequence[str]) -> dict[str, object] | None:
    """Types of all columns of all files; None where a file is one object, which the library knows to read."""
    if not all(map(_has_rows, files)):
        return None
    types: dict[str, pyarrow.DataType | None] = {}
    first = ""
    for file in files:
        for batch in batches(_json_rows(file, builder.config)):
            count(sum(size for _, size in batch))
            good = [row for row, _ in batch if not isinstance(row, str)]
            first = first or next((f"{file}: {row}" for row, _ in batch if isinstance(row, str)), "")
            for name in dict.fromkeys(chain.from_iterable(good)):
                found = _type_of([row.get(name) for row in good])
                types[name] = _merged(types[name], found) if name in types else found
            if len(types) > MAX_COLUMNS:
                raise TaskError(f"{file}: it has more than {MAX_COLUMNS} columns")
    if not types:
        raise TaskError(f"there is no row of JSON: {first or 'no content'}")
    return {name: _feature(kind) for name, kind in types.items()}


def json_tables(builder: Any, file: str) -> Iterator[pyarrow.Table]:
    """The rows of a file, by the types of the builder's features."""
    features = builder.info.features
    for batch in batches(_json_rows(file, builder.config)):
        rows = [row for row, _ in batch]
        good: list[Mapping[str, object]] = [{} if isinstance(row, str) else row for row in rows]
        columns = []
        for name, field in zip(features, features.arrow_schema, strict=True):
            values: list[object] = [row.get(name) for row in good]
            if name == UNREADABLE:
                values = [row if isinstance(row, str) else None for row in rows]
            elif isinstance(features[name], datasets.Json):
                values = [None if value is None else json.dumps(value) for value in values]
                columns.append(pyarrow.array(values, pyarrow.string()).cast(field.type))
                continue
            columns.append(pyarrow.array(values, field.type))
        yield pyarrow.Table.from_arrays(columns, schema=features.arrow_schema)


def _has_rows(file: str) -> bool:
    """Whether a file is a list or has lines of JSON, and is not one object over several lines."""
    with _opened(file) as opened:
        first = next(_first_lines(opened), b"")
    if first.startswith(b"[") or isinstance(_json_row(first, 1), Mapping):
        return True
    with _opened(file) as opened:
        try:
            return not isinstance(read_json(opened.read().removeprefix(UTF8_MARK)), Mapping)
        except (ValueError, RecursionError):
            return True


def _json_rows(file: str, config: Any) -> Iterator[tuple[Read, int]]:
    """The rows of a file, and the bytes of each."""
    with _opened(file) as opened:
        first, second = (*islice(_first_lines(opened), 2), b"", b"")[:2]
    with _opened(file) as opened:
        # A line of its own may be a list by mistake.
        if first.startswith(b"[") and not isinstance(_json_row(second, 2), Mapping):
            yield from _listed_rows(file, opened)
            return
        for number, line in enumerate(opened, 1):
            if (row := line.removeprefix(UTF8_MARK if number == 1 else b"")).strip():
                yield _json_row(row, number, config.encoding), len(row)


def _opened(file: str) -> io.BufferedReader:
    """A file, decompressed; it cannot be rewound."""
    return io.BufferedReader(_Raw(xopen(file, "rb")))


class _Raw(io.RawIOBase):
    """What `xopen` opens, of which some kinds can only be read: they have no lines."""

    def __init__(self, opened: BinaryIO) -> None:
        self._opened = opened

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._opened.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._opened.close()
        super().close()


def _first_lines(opened: BinaryIO) -> Iterator[bytes]:
    """Lines that are not blank."""
    return filter(None, (line.removeprefix(UTF8_MARK).strip() for line in opened))


def _listed_rows(file: str, opened: BinaryIO) -> Iterator[tuple[Read, int]]:
    """The items of a list; a text is a row with a column `text`."""
    content = opened.read()
    try:
        text = content.removeprefix(UTF8_MARK).decode(errors="surrogateescape")
        items = read_json(text)
        assert isinstance(items, list)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{file}: it is not valid JSON: {error}") from error
    size = math.ceil(len(content) / max(1, len(items)))
    for item in items:
        row = {"text": item} if isinstance(item, str) else item
        yield _checked(row), size


def _json_row(line: bytes, number: int, encoding: str = "utf-8") -> Read:
    """The row of a line."""
    try:
        row = _checked(read_json(line.decode(encoding)))
    except UnicodeDecodeError as error:
        row = not_utf8(error.object[error.start], encoding)
    except (ValueError, RecursionError) as error:
        row = f"it is not valid JSON: {error}"
    return f"line {number}: {row}" if isinstance(row, str) else row


def _checked(row: object) -> Read:
    """A row that Arrow can store: an object, its texts without halves of characters."""
    if not isinstance(row, Mapping):
        return f"it is not a JSON object, but {type(row).__name__}"
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return "it has text that is not UTF-8"
    return row


def _type_of(values: Sequence[object]) -> pyarrow.DataType | None:
    """Arrow's type of values; None where there is none for all of them."""
    try:
        return pyarrow.array(values).type
    except (pyarrow.ArrowException, OverflowError, TypeError, ValueError):
        return None


def _merged(one: pyarrow.DataType | None, other: pyarrow.DataType | None) -> pyarrow.DataType | None:
    """The type for values of both; None where there is none."""
    if one is None or other is None:
        return None
    if one.equals(other) or pyarrow.types.is_null(other):
        return one
    if pyarrow.types.is_null(one):
        return other
    if pyarrow.types.is_list(one) and pyarrow.types.is_list(other):
        item = _merged(one.value_type, other.value_type)
        return None if item is None else pyarrow.list_(item)
    if pyarrow.types.is_struct(one) and pyarrow.types.is_struct(other):
        ours, theirs = ({field.name: field.type for field in each} for each in (one, other))
        fields = {
            name: _merged(ours.get(name, pyarrow.null()), theirs.get(name, pyarrow.null()))
            for name in (*ours, *(theirs.keys() - ours.keys()))
        }
        return None if None in fields.values() else pyarrow.struct(fields)
    return None


def _feature(kind: pyarrow.DataType | None) -> object:
    """The library's name of a type."""
    if kind is None or "struct<>" in str(kind):
        return datasets.Json()
    return datasets.Features.from_arrow_schema(pyarrow.schema([("x", kind)]))["x"]
