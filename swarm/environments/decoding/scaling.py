"""Makes pictures smaller by integer arithmetic: the same pixels on every machine."""

from __future__ import annotations

from math import isqrt

import numpy
import numpy.typing

from swarm.types.media import MAX_SIDE

Pixels = numpy.typing.NDArray[numpy.uint8]
"""[height, width, 3]."""


def scaled(pixels: Pixels, max_pixels: int) -> Pixels:
    """A picture of at most so many pixels, each the mean of a block, rounded; as it is if it is small enough.

    It must have less than 2^24 rows, whose sum fits 32 bits.
    """
    height, width, _ = pixels.shape
    new_width, new_height = new_size(width, height, max_pixels)
    if (new_width, new_height) == (width, height):
        return pixels
    rows, columns = _starts(height, new_height), _starts(width, new_width)
    ends = [*rows[1:], height]
    # Thirty times as fast as `reduceat` on rows of bytes.
    by_row = numpy.stack([pixels[a:b].sum(axis=0, dtype=numpy.uint32) for a, b in zip(rows, ends, strict=True)])
    sums = numpy.add.reduceat(by_row, columns, axis=1, dtype=numpy.uint64)
    sizes = numpy.outer(_sizes(rows, height), _sizes(columns, width))[..., None]
    smaller: Pixels = ((sums + sizes // 2) // sizes).astype(numpy.uint8)
    return smaller


def new_size(width: int, height: int, max_pixels: int) -> tuple[int, int]:
    """Width and height of about the same proportion, within the limit and `MAX_SIDE`."""
    if width * height <= max_pixels and max(width, height) <= MAX_SIDE:
        return width, height
    room = min(max_pixels, MAX_SIDE**2 * min(width, height) // max(width, height))
    sides = isqrt(room * width // height), isqrt(room * height // width)
    return min(max(1, sides[0]), MAX_SIDE), min(max(1, sides[1]), MAX_SIDE)


def _starts(length: int, count: int) -> numpy.typing.NDArray[numpy.int64]:
    """Where each of `count` blocks of a side begins."""
    return numpy.arange(count, dtype=numpy.int64) * length // count


def _sizes(starts: numpy.typing.NDArray[numpy.int64], length: int) -> numpy.typing.NDArray[numpy.uint64]:
    return numpy.diff(starts, append=length).astype(numpy.uint64)
