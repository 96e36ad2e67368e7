"""Pixels: drawing and scaling images by integer arithmetic that is the same on every machine."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from types import MappingProxyType
from typing import Literal

import numpy
import numpy.typing

from swarm.types.media import MAX_SIDE, Image

Pixels = numpy.typing.NDArray[numpy.uint8]
"""[height, width, 3]."""
ShapeName = Literal["circle", "square", "triangle"]
ColourName = Literal["red", "green", "blue", "yellow", "white", "purple"]

COLOURS: Mapping[ColourName, tuple[int, int, int]] = MappingProxyType(
    {
        "red": (255, 0, 0),
        "green": (0, 255, 0),
        "blue": (0, 0, 255),
        "yellow": (255, 255, 0),
        "white": (255, 255, 255),
        "purple": (255, 0, 255),
    }
)


def blank(width: int, height: int) -> Pixels:
    """A black image."""
    return numpy.zeros((height, width, 3), numpy.uint8)


def add_shape(pixels: Pixels, shape: ShapeName, colour: ColourName, x: int, y: int, side: int) -> None:
    """Draw a shape that fills a square of `side` pixels whose upper left corner is (x, y)."""
    # Twice the distances from the middle: they are whole numbers for odd and even sides.
    across, down = numpy.meshgrid(*2 * [2 * numpy.arange(side) + 1 - side])
    match shape:
        case "circle":
            inside = across * across + down * down <= side * side
        case "square":
            inside = numpy.ones((side, side), bool)
        case "triangle":
            inside = 2 * abs(across) <= down + side
    pixels[y : y + side, x : x + side][inside] = COLOURS[colour]


def as_image(pixels: Pixels) -> Image:
    """The pixels as a part of a question."""
    height, width, _ = pixels.shape
    return Image(width, height, pixels.tobytes())


def scaled(pixels: Pixels, max_pixels: int) -> Pixels:
    """An image of at most so many pixels, each the mean of a block, rounded; as it is if it is small enough.

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
    room = max(1, min(max_pixels, MAX_SIDE**2 * min(width, height) // max(width, height)))
    new_width = min(max(1, isqrt(room * width // height)), MAX_SIDE, max_pixels)
    new_height = min(max(1, isqrt(room * height // width)), MAX_SIDE, max(1, max_pixels // new_width))
    return new_width, new_height


def _starts(length: int, count: int) -> numpy.typing.NDArray[numpy.int64]:
    """Where each of `count` blocks of a side begins."""
    return numpy.arange(count, dtype=numpy.int64) * length // count


def _sizes(starts: numpy.typing.NDArray[numpy.int64], length: int) -> numpy.typing.NDArray[numpy.uint64]:
    return numpy.diff(starts, append=length).astype(numpy.uint64)
