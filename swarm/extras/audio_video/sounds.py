"""Audio files, decoded by soundfile: one channel of 16 bits, at the file's rate or another one."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

import numpy
import numpy.typing
import soundfile

from swarm.environments.decoding.files import MediaSettings, Undecodable, decoding
from swarm.types.media import MAX_MEDIA_BYTES, MAX_RATE, Audio

Samples = numpy.typing.NDArray[numpy.int64]

FORMATS = frozenset({"WAV", "WAVEX", "FLAC", "OGG", "MP3"})
WHOLE = frozenset({"WAV", "WAVEX", "FLAC"})
"""Formats that say how long a sound is."""
MAX_CHANNELS = 16
BLOCK = 2**16
"""Samples read at a time, so that memory does not depend on what a file says of its length."""


def read_sound(file: bytes, settings: MediaSettings) -> Audio:
    """The audio as one channel, at `rate` if it is set. Raises `Undecodable`."""
    with decoding(file, "sound"):
        if not _looks_right(file):
            raise Undecodable("it is neither WAV, FLAC, Ogg nor MP3")
        if file[:4] == b"RIFF" and not _is_whole(file):
            raise Undecodable("it says that it is longer than the file")
        with soundfile.SoundFile(BytesIO(file)) as opened:
            if opened.format not in FORMATS or not 1 <= opened.channels <= MAX_CHANNELS:
                raise Undecodable(f"it has {opened.channels} channels in the format {opened.format}")
            if not 1 <= (rate := opened.samplerate) <= MAX_RATE:
                raise Undecodable(f"it has {rate} samples a second, more than {MAX_RATE}")
            room = min(int(settings.max_seconds * rate), MAX_MEDIA_BYTES // 2)
            samples = numpy.concatenate([numpy.zeros(0, numpy.int64), *_blocks(opened, room)])
            if opened.format in WHOLE and len(samples) != opened.frames:
                raise Undecodable(f"it ends after {len(samples)} of {opened.frames} samples")
        if settings.rate is not None:
            samples, rate = resampled(samples, rate, settings.rate), settings.rate
        if not 1 <= len(samples) <= MAX_MEDIA_BYTES // 2:
            raise Undecodable(f"it has {len(samples)} samples")
        return Audio(rate, samples.astype("<i2").tobytes())


def _looks_right(file: bytes) -> bool:
    """Whether the first bytes are those of a known format: others are not even tried."""
    is_mp3 = file[:3] == b"ID3" or (len(file) > 1 and file[0] == 0xFF and file[1] & 0xE0 == 0xE0)
    return file[:4] in (b"fLaC", b"OggS") or (file[:4] == b"RIFF" and file[8:12] == b"WAVE") or is_mp3


def _is_whole(file: bytes) -> bool:
    """Whether all chunks of a WAV file end within it: the library would read what there is."""
    place = 12
    while place + 8 <= len(file):
        place += 8 + (size := int.from_bytes(file[place + 4 : place + 8], "little")) + size % 2
    return place <= len(file) + 1


def _blocks(opened: soundfile.SoundFile, room: int) -> Iterator[Samples]:
    """[N] the mean of the channels, in integers of 16 bits."""
    num_samples = 0
    while len(block := opened.read(BLOCK, dtype="float64", always_2d=True)):
        if (num_samples := num_samples + len(block)) > room:
            raise Undecodable(f"it is longer than {room / opened.samplerate:g} s")
        mixed = block[:, 0].copy()
        for channel in range(1, block.shape[1]):  # in this order: the sum of floats depends on it
            mixed += block[:, channel]
        if not numpy.isfinite(mixed).all():
            raise Undecodable("it has samples that are no numbers")
        yield numpy.floor(mixed / block.shape[1] * 2**15 + 0.5).clip(-(2**15), 2**15 - 1).astype(numpy.int64)


def resampled(samples: Samples, rate: int, new_rate: int) -> Samples:
    """The audio at another rate, by integer arithmetic: means of intervals to a lower one, straight lines to a higher.

    A time is a whole number of 1 / (rate x new_rate) s.
    """
    if rate == new_rate or not len(samples):
        return samples
    count = max(1, len(samples) * new_rate // rate)
    times = numpy.arange(count + 1, dtype=numpy.int64) * rate
    whole, rest = times // new_rate, times % new_rate
    if new_rate > rate:
        here, after = (samples[(whole[:-1] + step).clip(0, len(samples) - 1)] for step in (0, 1))
        lines: Samples = (here * (new_rate - rest[:-1]) + after * rest[:-1] + new_rate // 2) // new_rate
        return lines
    before = numpy.concatenate([[0], numpy.cumsum(samples)])
    until = before[whole.clip(0, len(samples))] * new_rate + samples[whole.clip(0, len(samples) - 1)] * rest
    means: Samples = (numpy.diff(until) + rate // 2) // rate
    return means
