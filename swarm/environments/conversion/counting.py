"""Counts rows and bytes of a data set during its conversion, and refuses it at the limits.

The size of its files says little: a Parquet file of 446 bytes holds 4 GB, and so does a compressed one of 4 MB.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow
import pyarrow.parquet
import zstandard
from datasets.builder import Key
from datasets.packaged_modules.parquet.parquet import Parquet
from msgspec import Struct

from swarm.environments.conversion.limits import UNFINISHED, Limits
from swarm.errors import TaskError

MAX_FOOTER_STRING_BYTES = 2**24
MAX_FOOTER_ITEMS = 10**6
"""Most columns, row groups and schema entries of a Parquet footer."""
MAX_INDEX_BYTES = 2**24
"""Longest index at the end of an xz file."""
MAX_ZSTANDARD_HEADER_BYTES = 18
_GZIP, _ZIP, _XZ, _ZSTANDARD = b"\x1f\x8b", b"PK\x03\x04", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
_PARQUET = b"PAR1"
UNREADABLE = (ValueError, OSError, pyarrow.ArrowException, MemoryError)
"""Errors that `stated_by` raises."""
ROWS_AT_A_TIME = 32
"""Rows of a Parquet file, whatever its row groups are: a row may decode to a thousand times its bytes."""
MANY_BATCHES = 8_192
"""Beyond this number, batches get more rows."""


class Stated(Struct, frozen=True):
    """Size of one or several files by their own figures, which may be lies: they refuse early, and spare no count."""

    stored: int
    """Bytes on the disk."""
    content: int
    """Least bytes without compression; stored bytes if the format does not say."""
    rows: int = 0
    """0 if the format does not say."""


def stated_by(files: Iterable[Path]) -> Stated:
    """Total of these files. Raises `UNREADABLE` for a file whose own figures make no sense."""
    found = [_of_file(file) for file in files]
    return Stated(
        sum(each.stored for each in found), sum(each.content for each in found), sum(each.rows for each in found)
    )


def open_parquet(file: Path | BinaryIO) -> pyarrow.parquet.ParquetFile:
    """With a footer of bounded size. Raises what pyarrow raises."""
    return pyarrow.parquet.ParquetFile(
        file, thrift_string_size_limit=MAX_FOOTER_STRING_BYTES, thrift_container_size_limit=MAX_FOOTER_ITEMS
    )


def _of_file(path: Path) -> Stated:
    stored = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(6)
        if magic.startswith(_PARQUET):
            return _of_parquet(file, stored)
        content = 0
        if magic.startswith(_GZIP):
            content = _of_gzip(file, stored)
        elif magic.startswith(_ZIP):
            content = _of_zip(file)
        elif magic.startswith(_XZ):
            content = _of_xz(file, stored)
        elif magic.startswith(_ZSTANDARD):
            content = _of_zstandard(file)
    return Stated(stored, max(stored, content))


def _of_parquet(file: BinaryIO, stored: int) -> Stated:
    """Rows, and bytes after decompression, by its footer, which does not count expanded dictionaries and runs."""
    with open_parquet(file) as parquet:
        metadata = parquet.metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        sizes, rows = [group.total_byte_size for group in groups], [group.num_rows for group in groups]
        if min((*sizes, *rows, metadata.num_rows), default=0) < 0 or sum(rows) != metadata.num_rows:
            raise ValueError(f"its footer states {metadata.num_rows} rows, and {sum(rows)} in its row groups")
    return Stated(stored, max(stored, sum(sizes)), sum(rows))


def _of_gzip(file: BinaryIO, stored: int) -> int:
    """The length of its last part, modulo 2^32."""
    file.seek(max(0, stored - 4))
    return int.from_bytes(file.read(4), "little")


def _of_zip(file: BinaryIO) -> int:
    try:
        with zipfile.ZipFile(file) as archive:
            return sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(f"its directory cannot be read: {error}") from error


def _of_zstandard(file: BinaryIO) -> int:
    file.seek(0)
    try:
        size: int = zstandard.get_frame_parameters(file.read(MAX_ZSTANDARD_HEADER_BYTES)).content_size
    except zstandard.ZstdError as error:
        raise ValueError(f"its header cannot be read: {error}") from error
    return 0 if size >= 2**63 else size  # unknown


def _of_xz(file: BinaryIO, stored: int) -> int:
    """The sum in the index of its last stream."""
    file.seek(max(0, stored - 12))
    footer = file.read(12)
    size = 4 * (int.from_bytes(footer[4:8], "little") + 1)
    if footer[10:] != b"YZ" or not 8 <= size <= min(MAX_INDEX_BYTES, stored - 12):
        raise ValueError("its index cannot be found")
    file.seek(stored - 12 - size)
    count, *sizes = _numbers(file.read(size)[1:-4])
    return sum(sizes[1 : 2 * count : 2])


def _numbers(index: bytes) -> list[int]:
    """xz's integers of variable length, seven bits a byte: how many blocks, then stored and whole size of each."""
    found, number, shift = [], 0, 0
    for byte in index:
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            found.append(number)
            number = shift = 0
        elif shift > 63:
            raise ValueError("its index has a number beyond 63 bits")
    return found or [0]


class Conversion:
    """Counts and limits of one data set's conversion."""

    def __init__(
        self,
        limits: Limits,
        begun: Callable[[str], None] = lambda unfinished: None,
        limit_memory: Callable[[int], None] = lambda more_bytes: None,
    ) -> None:
        """`begun` gets the path that an interrupted conversion leaves behind; `limit_memory` gets the bytes of memory
        that the conversion may take."""
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
        """Bytes that may be written to the disk, downloads included."""
        return self._limits.largest(self._stored) + self._stored

    def expect(self, path: Path) -> None:
        """Measure local files before any is opened. Raises `OSError`."""
        files = path.rglob("*") if path.is_dir() else [path]
        self._stored = sum(file.stat().st_size for file in files if file.is_file())

    def watch(self, builder: Any, folder: str) -> None:
        """Count the output of a builder of `datasets` in `folder`. The builder raises `TaskError` at the limits."""
        self._begun(f"{folder}{UNFINISHED}")
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
        """The refusal when memory runs out."""
        return self._refusal("too many bytes of memory", self._limits.memory(self._stored))

    def _begin(self, stated: Stated) -> None:
        """Before anything is converted."""
        self._stored, self._stated_rows = stated.stored, stated.rows
        self._check(stated.rows, stated.content)
        self._limit_memory(self._limits.memory(self._stored))

    def _of_parquet(
        self, builder: Parquet, files: Sequence[str], row_groups_list: Sequence[Sequence[int] | None]
    ) -> Iterator[tuple[Key, pyarrow.Table]]:
        """Replaces the builder's own code, which would decode a group of rows as a whole."""
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
