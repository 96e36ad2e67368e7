"""Reads files of text, JSON and CSV row by row: what is wrong with one row is wrong with no other.

`datasets` gives up a whole file for one line that is cut off or not in UTF-8, guesses dates and numbers among texts,
and rounds large integers. Here a row that cannot be read stays in its place, with the reason; a JSON column whose
values are of several types, or of numbers that Arrow has none for, is stored as JSON.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import datasets
import pyarrow
from datasets.builder import Key
from datasets.packaged_modules.csv.csv import Csv
from datasets.packaged_modules.json.json import FullReadDisallowed, Json
from datasets.packaged_modules.text.text import Text
from datasets.utils.file_utils import xopen

from swarm.environments.conversion.csv_rows import csv_features, csv_tables
from swarm.environments.conversion.json_rows import Count, json_features, json_tables
from swarm.environments.conversion.rows import UNREADABLE, batches, is_utf8, text_table
from swarm.errors import TaskError

PLACE = "-by-rows-1"
"""Ends the name of the folder with what is read here; the number changes with what a row becomes."""
_UTF16 = (b"\xff\xfe", b"\xfe\xff")

FeaturesOf = Callable[[Any, Sequence[str]], Mapping[str, object] | None]
"""The types of all columns of files; None to leave them to the builder."""
TablesOf = Callable[[Any, str], Iterator[pyarrow.Table]]
"""The rows of a file, with these types."""


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
    """What takes the place of a builder's own reading. Others may wrap its functions, too, before they are called."""

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
    """In place of a first table, of which the library would take the types."""
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
