"""Video files, decoded by PyAV: some frames a second, without sound.

Only the decoders of FFmpeg are used. Its conversion of colours and sizes differs between processors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from io import BytesIO

import av
import numpy
import numpy.typing

from swarm.environments.decoding.files import MediaSettings, Undecodable, decoding
from swarm.environments.decoding.pixels import Pixels, scaled
from swarm.types.media import MAX_FRAMES_PER_S, MAX_MEDIA_BYTES, Video

MAX_SOURCE_PIXELS = 2**23
"""Pixels of a frame before it is scaled down."""
CODECS = frozenset({"h264", "hevc", "vp8", "vp9", "libdav1d", "av1", "mpeg4", "mjpeg", "ffv1", "png"})
_YUV = re.compile(r"yuv(j?)4(20|22|44)p")
_ONE = 2**16
"""Coefficients are multiples of 1 / 65,536."""
BT709 = 1
FULL_RANGE = 2
"""FFmpeg's numbers."""
Plane = numpy.typing.NDArray[numpy.int64]


def read_clip(file: bytes, settings: MediaSettings) -> Video:
    """The clip at `frames_per_s`, its frames no larger than `max_pixels` and small enough that `max_frames` fit.

    Raises `Undecodable`.
    """
    max_pixels = min(settings.max_pixels, MAX_MEDIA_BYTES // (3 * settings.max_frames))
    with decoding(file, "clip"):
        frames: list[Pixels] = []
        for frame in _shown(file, settings):
            pixels = scaled(as_rgb(frame), max_pixels)
            if frames and frames[0].shape != pixels.shape:
                raise Undecodable("its frames have different sizes")
            frames.append(pixels)
        if not frames:
            raise Undecodable("it has no frames")
        height, width, _ = frames[0].shape
        return Video(width, height, settings.frames_per_s, b"".join(frame.tobytes() for frame in frames))


def _shown(file: bytes, settings: MediaSettings) -> Iterator[av.VideoFrame]:
    """Frame k is the first one that is not earlier than k / `frames_per_s`."""
    count, start = 0, None
    for number, frame in enumerate(_decoded(file)):
        if frame.pts is None or frame.time_base is None or number > settings.max_seconds * MAX_FRAMES_PER_S:
            raise Undecodable("its frames have no times")
        time = frame.pts * frame.time_base
        start = time if start is None else start
        if time - start > settings.max_seconds:
            raise Undecodable(f"it is longer than {settings.max_seconds:g} s")
        while (time - start) * Fraction(settings.frames_per_s) >= count:
            if (count := count + 1) > settings.max_frames:
                raise Undecodable(
                    f"it has more than {settings.max_frames} frames at {settings.frames_per_s:g} a second"
                )
            yield frame


def _decoded(file: bytes) -> Iterator[av.VideoFrame]:
    with av.open(BytesIO(file), "r", format=_container(file)) as opened:
        if not opened.streams.video:
            raise Undecodable("it has no pictures")
        stream = opened.streams.video[0]
        context = stream.codec_context
        if context.name not in CODECS:
            raise Undecodable(f"it has the codec {context.name!r}, must be one of {', '.join(sorted(CODECS))}")
        if not 1 <= context.width * context.height <= MAX_SOURCE_PIXELS:
            size = f"{context.width} x {context.height}"
            raise Undecodable(f"it has {size} pixels, must have 1 to {MAX_SOURCE_PIXELS}")
        context.thread_count = 1
        context.options = {**context.options, "max_pixels": str(MAX_SOURCE_PIXELS)}
        yield from opened.decode(stream)


def _container(file: bytes) -> str:
    """FFmpeg's name of the format, by the first bytes: others may refer to further files."""
    if file[4:8] == b"ftyp":
        return "mp4"
    if file[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if file[:4] == b"RIFF" and file[8:12] == b"AVI ":
        return "avi"
    raise Undecodable("it is neither MP4, WebM, Matroska nor AVI")


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
