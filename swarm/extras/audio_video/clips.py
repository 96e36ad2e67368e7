"""Files of clips, read by PyAV: some frames a second, without sound.

Only the decoders of FFmpeg are used. Its conversion of colours and sizes differs between processors.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from io import BytesIO

import av

from swarm.environments.decoding.files import Undecodable, decoding
from swarm.environments.decoding.pixels import Pixels, scaled
from swarm.environments.decoding.settings import MediaSettings
from swarm.extras.audio_video.colours import as_rgb
from swarm.types.media import MAX_FRAMES_PER_S, MAX_MEDIA_BYTES, Video

MAX_SOURCE_PIXELS = 2**23
"""Of a frame before it is made smaller."""
CODECS = frozenset({"h264", "hevc", "vp8", "vp9", "libdav1d", "av1", "mpeg4", "mjpeg", "ffv1", "png"})


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
