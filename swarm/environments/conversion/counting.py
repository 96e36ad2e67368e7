"""What is made of a data set is counted while it is made, and ends where there is too much of it.

The size of its files says little: a Parquet file of 446 bytes holds 4 GB, and so does a compressed one of 4 MB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
from datasets.builder import Key
from datasets.packaged_modules.parquet.parquet import Parquet

from swarm.environments.conversion.limits import UNFINISHED, Limits
from swarm.environments.conversion.stated import Stated, open_parquet, stated_by
from swarm.errors import TaskError

ROWS_AT_A_TIME = 32
"""Of a Parquet file, whatever its row groups are: a row may be a thousand times what its bytes suggest."""
MANY_BATCHES = 8_192
"""From so many on, they have more rows."""


class Conversion:
    """Of one data set."""

    def __init__(
        self,
        limits: Limits,
        begun: Callable[[str], None] = lambda unfinished: None,
        limit_memory: Callable[[int], None] = lambda more_bytes: None,
    ) -> None:
        """`begun` is called with the path of what a conversion leaves behind if it ends in the middle; `limit_memory`
        with the bytes of memory that it may take."""
        self._limits = limits
        self._begun = begun
        self._limit_memory = limit_memory
        self._stored = 0
        self._stated_rows = 0
        self._rows = 0
        self._bytes = 0
        self._read = 0

    @property
    def most_written(self) -> int:
        """Bytes that may be written to the disk, where its files may be downloaded to first."""
        return self._limits.largest(self._stored) + self._stored

    def expect(self, path: Path) -> None:
        """Know how large local files are before any is opened. Raises `OSError`."""
        files = path.rglob("*") if path.is_dir() else [path]
        self._stored = sum(file.stat().st_size for file in files if file.is_file())

    def watch(self, builder: Any, place: str) -> None:
        """Have a builder of `datasets` count what it makes in a folder. It raises `TaskError` at the limits."""
        self._begun(f"{place}{UNFINISHED}")
        split, generate = builder._split_generators, getattr(builder, "_generate_tables", None)

        def split_generators(downloads: Any) -> Any:
            files = downloads.download(builder.config.data_files)
            self._begin(stated_by(Path(file) for of_split in files.values() for file in of_split))
            return split(downloads)

        if getattr(builder.config, "data_files", None):
            builder._split_generators = split_generators
        if isinstance(builder, Parquet) and builder.config.columns is None and builder.config.filters is None:
            generate = partial(self._of_parquet, builder)
        if generate is not None:
            builder._generate_tables = lambda *args, **options: self._counted(generate(*args, **options))

    def check_read(self, num_bytes: int) -> None:
        """Count bytes of files that are read before they are converted. Raises `TaskError` at the limit."""
        self._read += num_bytes
        self._check(0, self._read)

    def check_written(self, num_bytes: int) -> None:
        """Raises `TaskError` where so many bytes on the disk are too many."""
        if num_bytes > self.most_written:
            self._refuse(f"{num_bytes} bytes on the disk", self.most_written)

    def out_of_memory(self) -> TaskError:
        """The refusal where memory ends."""
        return self._refusal("too many bytes of memory", self._limits.memory(self._stored))

    def _begin(self, stated: Stated) -> None:
        """Before anything is converted."""
        self._stored, self._stated_rows = stated.stored, stated.rows
        self._check(stated.rows, stated.content)
        self._limit_memory(self._limits.memory(self._stored))

    def _of_parquet(
        self, builder: Parquet, files: Sequence[str], row_groups_list: Sequence[Sequence[int] | None]
    ) -> Iterator[tuple[Key, pyarrow.Table]]:
        """As the builder itself, which would decode a group of rows as a whole."""
        num_rows = max(ROWS_AT_A_TIME, self._stated_rows // MANY_BATCHES)
        for number, (file, groups) in enumerate(zip(files, row_groups_list, strict=True)):
            with open_parquet(Path(file)) as parquet:
                batches = parquet.iter_batches(num_rows, row_groups=groups, use_threads=False)
                for index, batch in enumerate(batches):
                    yield Key(number, index), builder._cast_table(pyarrow.Table.from_batches([batch]))

    def _counted(self, tables: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        for key, table in tables:
            self._rows += table.num_rows
            self._bytes += table.nbytes
            self._check(self._rows, self._bytes)
            yield key, table

    def _check(self, rows: int, num_bytes: int) -> None:
        if rows > self._limits.rows:
            self._refuse(f"{rows} rows", self._limits.rows)
        if num_bytes > (most := self._limits.largest(self._stored)):
            self._refuse(f"{num_bytes} bytes of rows", most)

    def _refuse(self, seen: str, most: int) -> None:
        raise self._refusal(f"{seen} or more", most)

    def _refusal(self, what: str, most: int) -> TaskError:
        trusted = "" if self._limits.growth is None else ", or raise verification.data if you trust its founder"
        return TaskError(
            f"to convert its {self._stored} bytes of files takes {what}, above the limit of {most}: leave the task out"
            f"{trusted}"
        )
