"""Files of CSV: every cell is the text in the file, and an empty one is missing.

`datasets` would guess types by column: 007 becomes 7, 12 beside an empty cell 12.0, and `None` or `NA` nothing.
"""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import datasets
import pandas
import pyarrow
from datasets.utils.file_utils import xopen

from swarm.environments.conversion.rows import UNREADABLE, batches, is_utf8, text_table

MAX_ROW_CHARS = 2**20
"""Of a row over several lines; a longer one has a quote that does not close."""
_DIALECT = ("quotechar", "quoting", "escapechar", "doublequote", "skipinitialspace")
_SIMPLE = frozenset(
    {"sep", "delimiter", "header", "names", "column_names", "encoding", "encoding_errors", "chunksize", *_DIALECT}
)
"""Options of a data card that are followed here; with others pandas reads the file, and gives it up as a whole."""


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
        """Of the row's first line."""
        self.held: list[str] = []
        """The row's lines so far."""
        self.ended = False
        """Whether the row goes on where there is no further line, or has become too long for one."""

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
