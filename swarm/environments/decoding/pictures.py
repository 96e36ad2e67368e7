"""Image files, decoded by Pillow: a few formats, sizes checked before pixels are decoded."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from types import MappingProxyType

import numpy
import PIL.BmpImagePlugin
import PIL.GifImagePlugin
import PIL.Image
import PIL.JpegImagePlugin
import PIL.PngImagePlugin
import PIL.WebPImagePlugin

from swarm.environments.decoding.files import MediaSettings, Undecodable, decoding
from swarm.environments.decoding.pixels import Pixels, scaled
from swarm.types.media import Image

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
MAX_SOURCE_PIXELS = 2**25
MAX_SOURCE_SIDE = 2**16
"""Side of an image before it is scaled down."""

ORIENTATION = 0x0112
TURNS: Mapping[int, PIL.Image.Transpose] = MappingProxyType(
    {
        2: PIL.Image.Transpose.FLIP_LEFT_RIGHT,
        3: PIL.Image.Transpose.ROTATE_180,
        4: PIL.Image.Transpose.FLIP_TOP_BOTTOM,
        5: PIL.Image.Transpose.TRANSPOSE,
        6: PIL.Image.Transpose.ROTATE_270,
        7: PIL.Image.Transpose.TRANSVERSE,
        8: PIL.Image.Transpose.ROTATE_90,
    }
)
"""Transposition by EXIF orientation."""


def read_picture(file: bytes, settings: MediaSettings) -> Image:
    """The image upright, without transparency, and no larger than `max_pixels`. Raises `Undecodable`."""
    with decoding(file, "picture"):
        with PIL.Image.open(BytesIO(file), formats=FORMATS) as opened:
            _check(opened)
            opened.verify()  # reads checksums, after which the file must be opened again
        with PIL.Image.open(BytesIO(file), formats=FORMATS) as opened:
            opened.load()
            turn = TURNS.get(opened.getexif().get(ORIENTATION, 1))
            pixels = _as_pixels(opened if turn is None else opened.transpose(turn))
        height, width, _ = (smaller := scaled(pixels, settings.max_pixels)).shape
        return Image(width, height, smaller.tobytes())


def _check(opened: PIL.Image.Image) -> None:
    """Raises `Undecodable` for what the header already forbids."""
    width, height = opened.size
    if width * height > MAX_SOURCE_PIXELS or max(width, height) > MAX_SOURCE_SIDE:
        most = f"{MAX_SOURCE_PIXELS} in all and {MAX_SOURCE_SIDE} on a side"
        raise Undecodable(f"it has {width} x {height} pixels, may have {most}")
    if getattr(opened, "is_animated", False):
        raise Undecodable("it has several frames, must have one")


def _as_pixels(opened: PIL.Image.Image) -> Pixels:
    """Red, green and blue; what is transparent shows white."""
    if opened.mode.startswith("I"):  # 16 bits of grey
        grey = (numpy.asarray(opened).astype(numpy.int64) >> 8).clip(0, 255).astype(numpy.uint8)
        return numpy.repeat(grey[..., None], 3, axis=2)
    if not opened.has_transparency_data:
        return numpy.asarray(opened.convert("RGB"))
    coloured = numpy.asarray(opened.convert("RGBA")).astype(numpy.uint32)
    colours, alpha = coloured[..., :3], coloured[..., 3:]
    flat: Pixels = ((colours * alpha + 255 * (255 - alpha) + 127) // 255).astype(numpy.uint8)
    return flat
