"""Reads files of text, JSON and CSV row by row: a bad row does not affect others.

`datasets` gives up a whole file for one line that is cut off or not in UTF-8, guesses dates and numbers among texts,
and rounds large integers; by column, 007 becomes 7, 12 beside an empty cell 12.0, and `None` or `NA` nothing. Here a
row that cannot be read keeps its index, with the reason. A cell of CSV is the text in the file, and an empty one is
missing. A JSON column whose values have several types, or numbers that Arrow has no type for, is stored as JSON.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, BinaryIO, TypeVar

import datasets
import pandas
import pyarrow
from datasets.builder import Key
from datasets.packaged_modules.csv.csv import Csv
from datasets.packaged_modules.json.json import FullReadDisallowed, Json
from datasets.packaged_modules.text.text import Text
from datasets.utils.file_utils import xopen

from swarm.errors import TaskError

UNREADABLE = "__unreadable__"
"""A column with the reason why a row could not be read, or nothing."""
UTF8_MARK = b"\xef\xbb\xbf"
_BATCH_ROWS, _BATCH_BYTES = 1_024, 2**20

T = TypeVar("T")
MAX_ROW_CHARS = 2**20
"""Longest row over several lines; a longer one has a quote that does not close."""
_DIALECT = ("quotechar", "quoting", "escapechar", "doublequote", "skipinitialspace")
_SIMPLE = frozenset(
    {"sep", "delimiter", "header", "names", "column_names", "encoding", "encoding_errors", "chunksize", *_DIALECT}
)
"""Options of a data card that are followed here; with others pandas reads the file, and gives it up as a whole."""
MAX_COLUMNS = 4_096
_MAX_DIGITS = 4_000
"""Longer integers stay text; Python refuses to write them."""
Read = Mapping[str, object] | str
"""A row, or why it could not be read."""
Count = Callable[[int], None]
"""Gets the number of bytes read; raises `TaskError` at a limit."""
PLACE = "-by-rows-1"
"""Ends the name of the folder with what is read here; the number changes with what a row becomes."""
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
FeaturesOf = Callable[[Any, Sequence[str]], Mapping[str, object] | None]
"""The types of all columns of files; None to leave them to the builder."""
TablesOf = Callable[[Any, str], Iterator[pyarrow.Table]]
"""The rows of a file, with these types."""


def text_table(builder: Any, columns: Mapping[str, list[str | None]], reasons: Sequence[str | None]) -> pyarrow.Table:
    """Texts by column; a row with one that was not in UTF-8 loses them all."""
    schema = builder.info.features.arrow_schema
    unreadable = list(reasons)
    for values in columns.values():
        for i, value in enumerate(values):
            if value is not None and not value.isascii() and (bad := _escaped(value)) is not None:
                unreadable[i] = not_utf8(bad)
    for i, reason in enumerate(unreadable):
        if reason is not None:
            for values in columns.values():
                values[i] = None
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
    """Batches of bounded rows and bytes."""
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


def csv_features(builder: Any, files: Sequence[str]) -> dict[str, object]:
    """Text, for all columns of the first file."""
    with xopen(files[0], "rb") as opened:
        names = _read_csv(builder, opened, nrows=0).columns
    return {str(name): datasets.Value("string") for name in names}


def csv_tables(builder: Any, file: str) -> Iterator[pyarrow.Table]:
    """The rows of a file."""
    names = [name for name in builder.info.features if name != UNREADABLE]
    yield from _row_by_row(builder, file, names) if _is_simple(builder.config) else _by_pandas(builder, file, names)


def _is_simple(config: Any) -> bool:
    usual = type(config)(name=config.name)
    changed = {name for name, value in vars(config).items() if name in vars(usual) and value != vars(usual)[name]}
    options = changed - {"version", "data_dir", "data_files", "description", "features"}
    return (
        options <= _SIMPLE
        and len(config.sep) == 1
        and config.header in ("infer", 0, None)
        and config.quoting != csv.QUOTE_NONNUMERIC
    )


def _row_by_row(builder: Any, file: str, names: Sequence[str]) -> Iterator[pyarrow.Table]:
    config = builder.config
    rows = _rows(file, config)
    if config.header == 0 or (config.header == "infer" and config.names is None):
        next(rows, None)
    for batch in batches(rows):
        read = [_cells(row, len(names)) for row, _ in batch]
        missing = [None] * len(names)
        columns = zip(*(missing if isinstance(row, str) else row for row in read), strict=True)
        reasons = [row if isinstance(row, str) else None for row in read]
        yield text_table(builder, dict(zip(names, map(list, columns), strict=True)), reasons)


def _cells(row: list[str] | str, count: int) -> list[str | None] | str:
    """The cells of a row, those at its end that it lacks included; or why it has none."""
    if isinstance(row, str):
        return row
    if any(row[count:]):
        return f"it has {len(row)} cells, more than the {count} of the header"
    return [*(cell or None for cell in row[:count]), *[None] * (count - len(row))]


def _rows(file: str, config: Any) -> Iterator[tuple[list[str] | str, int]]:
    """The cells of each row that is not blank, or why it cannot be read, and its characters."""
    dialect = {name: getattr(config, name) for name in _DIALECT} | {"delimiter": config.sep}
    encoding, errors = (
        ("utf-8-sig", "surrogateescape") if is_utf8(config) else (config.encoding, config.encoding_errors)
    )
    csv.field_size_limit(2**31 - 1)
    with io.TextIOWrapper(xopen(file, "rb"), encoding=encoding, errors=errors, newline="") as opened:
        lines = _Lines(opened)
        reader = csv.reader(lines, **dialect)
        while lines.begin():
            try:
                row = next(reader, None)
                reason = "it has a quote that does not close" if lines.ended and lines.held else ""
            except csv.Error as error:
                row, reason = [], str(error)
            if reason:
                yield f"line {lines.number}: {reason}", len(lines.held[0])
                lines.put_back()
                reader = csv.reader(lines, **dialect)
            elif row:
                yield row, sum(map(len, lines.held))


class _Lines(Iterator[str]):
    """Lines, of which those of the row in progress are kept."""

    def __init__(self, opened: Iterable[str]) -> None:
        self._opened = iter(opened)
        self._waiting: deque[str] = deque()
        self._chars = 0
        self.number = 0
        """Number of the row's first line."""
        self.held: list[str] = []
        """The row's lines so far."""
        self.ended = False
        """Whether the row is unfinished at the end of the file, or too long."""

    def begin(self) -> bool:
        """Begin a row; False at the end."""
        self.number += len(self.held) if self.number else 1
        self.held, self._chars = [], 0
        if not self._waiting and (line := next(self._opened, None)) is not None:
            self._waiting.append(line)
        return bool(self._waiting)

    def put_back(self) -> None:
        """All lines of the row but its first, which is passed over."""
        self._waiting.extendleft(reversed(self.held[1:]))
        self.held, self.ended = self.held[:1], False

    def __next__(self) -> str:
        line = self._waiting.popleft() if self._waiting else next(self._opened, None)
        if line is None or self._chars > MAX_ROW_CHARS:
            self._waiting.extendleft([line] if line is not None else [])
            self.ended = True
            raise StopIteration
        self.held.append(line)
        self._chars += len(line)
        return line


def _by_pandas(builder: Any, file: str, names: Sequence[str]) -> Iterator[pyarrow.Table]:
    with xopen(file, "rb") as opened:
        for cells in _read_csv(builder, opened):
            rows = cells.astype(object).where(cells.notna(), None)
            missing: list[str | None] = [None] * len(rows)
            columns = {name: list[str | None](rows[name]) if name in rows else missing.copy() for name in names}
            yield text_table(builder, columns, missing)


def _read_csv(builder: Any, opened: BinaryIO, **options: object) -> Any:
    """A table, or an iterator of them."""
    wanted = builder.config.pd_read_csv_kwargs
    errors = {"encoding_errors": "surrogateescape"} if is_utf8(builder.config) else {}
    as_written = {"keep_default_na": False, "na_values": [""], "dtype": object, **errors}
    if "nrows" in options:
        wanted.pop("chunksize", None)
    return pandas.read_csv(opened, **{**wanted, **as_written, **options})


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
        # A separate line may be a list by mistake.
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
    """A file of `xopen`, some kinds of which have no lines."""

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


def read_by_rows(builder: Any, count: Count | None = None) -> bool:
    """Have a builder of `datasets` read this way, if it is of such files and their types are not stated elsewhere."""
    if builder.info.features is not None or getattr(builder.config, "field", None) is not None:
        return False
    if isinstance(builder, Json):
        _Reader(builder, partial(json_features, count or (lambda num_bytes: None)), json_tables)
    elif isinstance(builder, Csv):
        _Reader(builder, csv_features, csv_tables)
    elif isinstance(builder, Text) and builder.config.sample_by == "line":
        _Reader(builder, lambda builder, files: {"text": datasets.Value("string")}, _text_tables)
    else:
        return False
    return True


class _Reader:
    """Replaces the reading functions of a builder. Others may wrap them, too, before they are called."""

    def __init__(self, builder: Any, features_of: FeaturesOf, tables_of: TablesOf) -> None:
        self._builder = builder
        self._features_of = features_of
        self._tables_of = tables_of
        self._split, self._own = builder._split_generators, builder._generate_tables
        self._generate: Callable[..., Iterator[tuple[Key, pyarrow.Table]]] = _nothing
        builder._split_generators = self._generators
        builder._generate_tables = lambda *args, **options: self._generate(*args, **options)

    def _generators(self, downloads: Any) -> Any:
        splits = self._split(downloads)
        files = [file for each in splits for file in chain.from_iterable(each.gen_kwargs["files_iterables"])]
        for file in files:
            _check_encoding(file, self._builder.config)
        features = self._features_of(self._builder, files)
        if features is None:
            self._generate = self._own
            return self._split(downloads)
        self._builder.info.features = datasets.Features({**features, UNREADABLE: datasets.Value("string")})
        self._generate = self._tables
        return splits

    def _tables(self, files_iterables: Iterable[Iterable[str]], **_: object) -> Iterator[tuple[Key, pyarrow.Table]]:
        for number, files in enumerate(files_iterables):
            made = chain.from_iterable(self._tables_of(self._builder, file) for file in files)
            for index, table in enumerate(made):
                yield Key(number, index), table


def _nothing(*args: object, **options: object) -> Iterator[Any]:
    """No first table, because the library would take its types."""
    raise FullReadDisallowed


def _check_encoding(file: str, config: Any) -> None:
    with xopen(file, "rb") as opened:
        if opened.read(2) in _UTF16 and is_utf8(config):
            raise TaskError(f"{file}: it is in UTF-16; save it as UTF-8")


def _text_tables(builder: Any, file: str) -> Iterator[pyarrow.Table]:
    """A row for each line."""
    encoding, keep = builder.config.encoding, builder.config.keep_linebreaks
    errors = "surrogateescape" if is_utf8(builder.config) else None
    (name,) = (name for name in builder.info.features if name != UNREADABLE)
    with io.TextIOWrapper(xopen(file, "rb"), encoding=encoding, errors=errors) as opened:
        for batch in batches((line if keep else line.rstrip("\n"), len(line)) for line in opened):
            yield text_table(builder, {name: [line for line, _ in batch]}, [None] * len(batch))
