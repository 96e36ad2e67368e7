"""The colours of a clip's frame as red, green and blue, by integer arithmetic."""

from __future__ import annotations

import re

import av
import numpy
import numpy.typing

from swarm.environments.decoding.files import Undecodable
from swarm.environments.decoding.pixels import Pixels

_YUV = re.compile(r"yuv(j?)4(20|22|44)p")
_ONE = 2**16
"""Coefficients are multiples of 1 / 65,536."""
BT709 = 1
FULL_RANGE = 2
"""FFmpeg's numbers."""
Plane = numpy.typing.NDArray[numpy.int64]


def as_rgb(frame: av.VideoFrame) -> Pixels:
    """[height, width, 3] of the frame. Raises `Undecodable` for a way to store colours that is not read here."""
    name = frame.format.name
    if (yuv := _YUV.fullmatch(name)) is not None:
        is_full = bool(yuv[1]) or frame.color_range == FULL_RANGE
        return _from_yuv(frame, _is_half(yuv[2] != "44"), _is_half(yuv[2] == "20"), is_full)
    if name == "gray":
        return numpy.repeat(_plane(frame, 0, frame.width, frame.height)[..., None], 3, axis=2)
    if name in ("rgb24", "bgr24", "rgba", "bgra", "rgb0", "bgr0"):
        channels = 3 if name.endswith("24") else 4
        rows = _plane(frame, 0, frame.width * channels, frame.height)
        colours = rows.reshape(frame.height, frame.width, channels)[..., :3]
        return colours[..., ::-1] if name.startswith("bgr") else colours
    raise Undecodable(f"its colours are stored as {name!r}, which is not read here")


def _is_half(halved: bool) -> int:
    return 2 if halved else 1


def _from_yuv(frame: av.VideoFrame, across: int, down: int, is_full: bool) -> Pixels:
    """Brightness and two differences of colour, one for each block of `across` x `down` pixels."""
    width, height = frame.width, frame.height
    small = (-(-width // across), -(-height // down))
    bright = _plane(frame, 0, width, height).astype(numpy.int64)
    blue, red = (_plane(frame, number, *small).astype(numpy.int64) - 128 for number in (1, 2))
    blue, red = (each.repeat(down, axis=0).repeat(across, axis=1)[:height, :width] for each in (blue, red))
    of_red, of_blue = (0.2126, 0.0722) if frame.colorspace == BT709 else (0.299, 0.114)
    of_green = 1 - of_red - of_blue
    steps, difference = (1.0, 1.0) if is_full else (255 / 219, 255 / 224)
    level = _times(steps, bright if is_full else bright - 16)
    more_red, more_blue = 2 * (1 - of_red) * difference, 2 * (1 - of_blue) * difference
    colours = (
        level + _times(more_red, red),
        level - _times(more_blue * of_blue / of_green, blue) - _times(more_red * of_red / of_green, red),
        level + _times(more_blue, blue),
    )
    pixels: Pixels = ((numpy.stack(colours, axis=2) + _ONE // 2) >> 16).clip(0, 255).astype(numpy.uint8)
    return pixels


def _times(factor: float, plane: Plane) -> Plane:
    return round(factor * _ONE) * plane


def _plane(frame: av.VideoFrame, number: int, width: int, height: int) -> Pixels:
    """[height, width] bytes of a plane, without what pads its rows."""
    plane = frame.planes[number]
    stored = numpy.frombuffer(plane, numpy.uint8)  # type: ignore[call-overload]
    rows: Pixels = stored[: plane.line_size * height].reshape(height, plane.line_size)[:, :width]
    return rows
