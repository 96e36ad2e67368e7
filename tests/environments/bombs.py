"""Small files of which a reader makes large tables."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Callable, Mapping

import pyarrow
import pyarrow.parquet
import zstandard

ROWS = "".join(json.dumps({"question": f"q {n}", "answer": str(n)}) + "\n" for n in range(20)).encode()
VALUE = "a" * 2**20


def parquet(num_rows: int, value: str = VALUE) -> bytes:
    """Rows of one text, which is stored once: 446 bytes for 4,000 of 1 MB."""
    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * num_rows, pyarrow.int32()), pyarrow.array([value]))
    return _parquet({"question": texts, "answer": pyarrow.array(["1"] * num_rows)})


def parquet_of_lists(num_values: int) -> bytes:
    """One row with a list of one text."""
    texts = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * num_values, pyarrow.int32()), pyarrow.array([VALUE])
    )
    lists = pyarrow.ListArray.from_arrays(pyarrow.array([0, num_values], pyarrow.int32()), texts)
    return _parquet({"question": pyarrow.array(["q"]), "answer": lists})


def parquet_of_one_page(num_bytes: int) -> bytes:
    """A row with one text, in a file whose footer states a few bytes instead: 12 KB for 300 MB."""
    content = _parquet({"question": pyarrow.array(["a" * num_bytes]), "answer": pyarrow.array(["1"])}, False)
    group = pyarrow.parquet.ParquetFile(io.BytesIO(content)).metadata.row_group(0)
    for size in (group.total_byte_size, group.column(0).total_uncompressed_size):
        stated = _varint(2 * size)
        assert content.count(stated) == 1
        content = content.replace(stated, _varint(2, len(stated)))
    return content


def _varint(number: int, length: int = 1) -> bytes:
    """As Thrift writes it, in at least `length` bytes."""
    found = []
    while number or len(found) < length:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found[:-1], found[-1] & 0x7F])


def lines(num_rows: int, value: str = VALUE) -> bytes:
    """Rows as JSON, a line each."""
    return (json.dumps({"question": value, "answer": "1"}) + "\n").encode() * num_rows


def wide(num_rows: int) -> bytes:
    """Rows of which each has columns of its own: all the others lack them, at eight bytes each."""
    rows = ({"question": "q", "answer": "1", **{f"c{10 * n + k}": 1 for k in range(10)}} for n in range(num_rows))
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def zipped(content: bytes) -> bytes:
    """As `gzip.compress` and others."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train.jsonl", content)
    return sink.getvalue()


def gzipped_in_parts(content: bytes) -> bytes:
    """The last part alone states its length."""
    return gzip.compress(content, 1) + gzip.compress(b"\n")


def zstandard_without_size(content: bytes) -> bytes:
    """A stream whose header does not say what is in it."""
    compressor = zstandard.ZstdCompressor(1).compressobj()
    return compressor.compress(content) + compressor.flush()


COMPRESSED: Mapping[str, Callable[[bytes], bytes]] = {
    "train.jsonl.gz": lambda content: gzip.compress(content, 1),
    "parts/train.jsonl.gz": gzipped_in_parts,
    "train.jsonl.bz2": lambda content: bz2.compress(content, 1),
    "train.jsonl.xz": lambda content: lzma.compress(content, preset=0),
    "train.jsonl.zst": lambda content: zstandard.compress(content, 1),
    "stream/train.jsonl.zst": zstandard_without_size,
    "train.zip": zipped,
}
"""By the name that tells the library what it is."""


def _parquet(columns: Mapping[str, pyarrow.Array], has_dictionary: bool = True) -> bytes:
    sink = io.BytesIO()
    options = {"compression": "zstd", "store_schema": False, "write_statistics": False}
    pyarrow.parquet.write_table(pyarrow.table(dict(columns)), sink, use_dictionary=has_dictionary, **options)
    return sink.getvalue()
