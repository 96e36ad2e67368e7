"""Small files of pictures, sounds and clips, written here."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

import av
import numpy
import numpy.typing
import PIL.Image
import soundfile

Pixels = numpy.typing.NDArray[numpy.uint8]


def gradient(width: int = 24, height: int = 16, seed: int = 0) -> Pixels:
    """A picture whose pixels all differ from their neighbours'."""
    y, x = numpy.mgrid[:height, :width]
    return numpy.stack([x * 9 + seed, y * 13 + seed, x * y + seed], axis=2).astype(numpy.uint8)


def picture(pixels: Pixels | None = None, suffix: str = "PNG", **options: object) -> bytes:
    sink = BytesIO()
    PIL.Image.fromarray(gradient() if pixels is None else pixels).save(sink, suffix, **options)
    return sink.getvalue()


def animation(num_frames: int, suffix: str = "GIF") -> bytes:
    first, *others = (PIL.Image.fromarray(gradient(8, 8, seed % 250)) for seed in range(num_frames))
    sink = BytesIO()
    first.save(sink, suffix, save_all=True, append_images=others)
    return sink.getvalue()


def wave(num_samples: int = 800, num_channels: int = 1) -> numpy.typing.NDArray[numpy.int16]:
    each = (numpy.arange(num_samples) * 37 % 2_000 - 1_000).astype(numpy.int16)
    return each if num_channels == 1 else numpy.stack([each * (n + 1) for n in range(num_channels)], axis=1)


def sound(
    samples: numpy.typing.NDArray[numpy.int16] | None = None,
    suffix: str = "WAV",
    rate: int = 8_000,
    subtype: str | None = None,
) -> bytes:
    sink = BytesIO()
    soundfile.write(sink, wave() if samples is None else samples, rate, format=suffix, subtype=subtype)
    return sink.getvalue()


def clip(
    frames: Sequence[Pixels] | None = None,
    container: str = "mp4",
    codec: str = "libx264",
    colours: str = "yuv420p",
    rate: int = 8,
) -> bytes:
    frames = frames or [gradient(32, 16, 5 * number) for number in range(16)]
    sink = BytesIO()
    with av.open(sink, "w", format=container) as opened:
        stream = opened.add_stream(codec, rate=rate)
        stream.height, stream.width, _ = frames[0].shape
        stream.pix_fmt = colours
        for pixels in frames:
            frame = av.VideoFrame.from_ndarray(numpy.ascontiguousarray(pixels), format="rgb24")
            opened.mux(stream.encode(frame.reformat(format=colours)))
        opened.mux(stream.encode())
    return sink.getvalue()
