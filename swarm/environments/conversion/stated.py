"""What files of a data set say of their own size, read without their content.

Such figures may be lies: they refuse a data set early, and spare no count of what is really made of it.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import pyarrow
import pyarrow.parquet
import zstandard
from msgspec import Struct

MAX_FOOTER_STRING_BYTES = 2**24
MAX_FOOTER_ITEMS = 10**6
"""Of a Parquet footer: columns, row groups, and entries of the schema."""
MAX_INDEX_BYTES = 2**24
"""Of the index at the end of an xz file."""
MAX_ZSTANDARD_HEADER_BYTES = 18
_GZIP, _ZIP, _XZ, _ZSTANDARD = b"\x1f\x8b", b"PK\x03\x04", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
_PARQUET = b"PAR1"
UNREADABLE = (ValueError, OSError, pyarrow.ArrowException, MemoryError)
"""What `stated_by` raises."""


class Stated(Struct, frozen=True):
    """Of a file, or of several together."""

    stored: int
    """Bytes on the disk."""
    content: int
    """Bytes without compression, at least; as they are stored where the format does not say."""
    rows: int = 0
    """0 where the format does not say."""


def stated_by(files: Iterable[Path]) -> Stated:
    """Of all these files together. Raises `UNREADABLE` for one whose own figures make no sense."""
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
    """Its footer: rows, and bytes after decompression. What dictionaries and runs stand for is not in it."""
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
