"""Draws pictures by integer arithmetic: which pixels a shape covers is decided exactly."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy
import numpy.typing

from swarm.environments.generated.config import ColourName, ShapeName
from swarm.types.media import Image

Pixels = numpy.typing.NDArray[numpy.uint8]
"""[height, width, 3]."""

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
    """A black picture."""
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
    """The picture as a part of a question."""
    height, width, _ = pixels.shape
    return Image(width, height, pixels.tobytes())
