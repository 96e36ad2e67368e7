"""Two hundred files that are no good pictures, sounds and clips, made of good ones in a fixed way."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from random import Random

from swarm.types.media import Modality
from tests.environments.media_examples import animation, clip, gradient, picture, sound, wave

BadFile = tuple[str, Modality, bytes]
"""What is wrong, what it claims to be, and the file."""
COUNT = 200


def bad_files() -> list[BadFile]:
    found = [*_pictures(), *_sounds(), *_clips()]
    fixed, random = len(found), Random(5)
    while len(found) < COUNT:
        length = random.randrange(1, 5_000)
        modality: Modality = random.choice(("image", "audio", "video"))
        head = {"image": b"\x89PNG\r\n\x1a\n", "audio": b"RIFF\xff\xff\xff\x7fWAVEfmt ", "video": b"\0\0\0\x18ftypisom"}
        found.append((f"noise {len(found) - fixed}", modality, head[modality] + random.randbytes(length)))
    return found


def png(width: int, height: int, content: bytes, *chunks: tuple[bytes, bytes], depth: int = 8, kind: int = 2) -> bytes:
    """A PNG file that says what it is told to."""
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", content), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )


def _pictures() -> Iterator[BadFile]:
    zeros = zlib.compress(bytes(10**7), 9)
    for width, height in ((100_000, 100_000), (2**31 - 1, 1), (1, 2**31 - 1), (70_000, 100), (0, 5), (40_000, 40_000)):
        yield f"PNG of {width} x {height}", "image", png(width, height, zeros)
    yield "PNG with fewer pixels than it says", "image", png(500, 500, zlib.compress(bytes(1_000)))
    yield (
        "PNG of text without end",
        "image",
        png(4, 4, zlib.compress(bytes(52)), *[(b"zTXt", b"a\0\0" + zlib.compress(bytes(10**8), 9))] * 3),
    )
    yield "PNG of an impossible kind", "image", png(4, 4, zlib.compress(bytes(52)), kind=5)
    yield "PNG with a palette that is missing", "image", png(4, 4, zlib.compress(bytes(52)), depth=8, kind=1)
    for name, suffix, frames in (
        ("GIF", "GIF", 1_000),
        ("APNG", "PNG", 300),
        ("WebP", "WEBP", 50),
        ("GIF", "GIF", 2),
    ):
        yield f"{name} of {frames} frames", "image", animation(frames, suffix)
    good = {suffix: picture(gradient(64, 48), suffix) for suffix in ("PNG", "JPEG", "WEBP", "BMP", "GIF")}
    for suffix, file in good.items():
        for part in (0.02, 0.1, 0.3, 0.5, 0.7, 0.9):
            yield f"{suffix} cut off at {part}", "image", file[: int(len(file) * part)]
    lying = bytearray(good["GIF"])
    lying[6:10] = struct.pack("<HH", 65_535, 65_535)
    yield "GIF that says it is huge", "image", bytes(lying)
    lying = bytearray(good["BMP"])
    lying[18:26] = struct.pack("<ii", 60_000, 60_000)
    yield "BMP that says it is huge", "image", bytes(lying)
    lying = bytearray(good["JPEG"])
    place = lying.index(b"\xff\xc0")
    lying[place + 5 : place + 9] = struct.pack(">HH", 65_500, 65_500)
    yield "JPEG that says it is huge", "image", bytes(lying)
    random = Random(1)
    for number in range(20):
        file = bytearray(good["PNG"])
        for _ in range(5):
            file[random.randrange(40, len(file) - 20)] ^= 1 << random.randrange(8)
        yield f"PNG with other bits {number}", "image", bytes(file)
    for suffix in ("TIFF", "ICO", "PPM", "TGA", "EPS", "PDF", "JPEG2000"):
        yield f"{suffix}, which is not read", "image", picture(gradient(), suffix)
    yield "SVG", "image", b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
    yield "EPS that runs a program", "image", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(%pipe%id) (r) file\n"
    yield "bomb of zeros", "image", gzip.compress(bytes(10**8))
    yield "picture of 40 MB", "image", good["PNG"] + bytes(4 * 10**7)
    yield "nothing", "image", b""
    yield "a sound", "image", sound()


def _sounds() -> Iterator[BadFile]:
    good = {suffix: sound(suffix=suffix) for suffix in ("WAV", "FLAC")}
    for suffix, file in good.items():
        for part in (0.01, 0.03, 0.3, 0.6, 0.9):
            yield f"{suffix} cut off at {part}", "audio", file[: int(len(file) * part)]
    for place, size in ((40, 2**31 - 1), (40, 2**32 - 1), (40, 5_000), (16, 2**31), (16, 0)):
        lying = bytearray(good["WAV"])
        lying[place : place + 4] = struct.pack("<I", size)
        yield f"WAV with {size} at {place}", "audio", bytes(lying)
    for place, kind, value in (
        (22, "<H", 0),
        (22, "<H", 1_024),
        (24, "<I", 0),
        (24, "<I", 2**31),
        (34, "<H", 77),
        (20, "<H", 99),
    ):
        lying = bytearray(good["WAV"])
        lying[place : place + struct.calcsize(kind)] = struct.pack(kind, value)
        yield f"WAV with {value} at {place}", "audio", bytes(lying)
    yield "a sound of five minutes", "audio", sound(wave(300 * 8_000))
    yield "no samples", "audio", sound(wave(0))
    for suffix in ("AIFF", "AU", "CAF", "W64", "VOC", "RF64"):
        yield f"{suffix}, which is not read", "audio", sound(suffix=suffix)
    yield "samples that are no numbers", "audio", sound(subtype="FLOAT")[:-400] + struct.pack("<f", float("nan")) * 100
    yield "MP3 of one byte for ever", "audio", b"\xff\xfb" + b"\xff" * 10**5
    yield "Ogg of one page", "audio", b"OggS" + bytes(1_000)
    yield "ID3 that says it is huge", "audio", b"ID3\x04\0\0\x7f\x7f\x7f\x7f" + bytes(10_000)
    yield "nothing", "audio", b""
    yield "a picture", "audio", picture()


def _clips() -> Iterator[BadFile]:
    good = {
        "mp4": clip(),
        "webm": clip(container="webm", codec="libvpx-vp9"),
        "avi": clip(container="avi", codec="mpeg4"),
    }
    for container, file in good.items():
        for part in (0.01, 0.05, 0.1):
            yield f"{container} cut off at {part}", "video", file[: int(len(file) * part)]
    for part in (0.3, 0.5, 0.7, 0.9):
        yield f"mp4 cut off at {part}", "video", good["mp4"][: int(len(good["mp4"]) * part)]
    yield "mp4 without its head", "video", good["mp4"][40:]
    yield "a clip of huge frames", "video", clip([gradient(4_200, 2_000)], "matroska", "ffv1")
    yield "a clip of a minute", "video", clip([gradient(32, 16)] * 61, rate=1)
    yield "a clip of too many frames", "video", clip([gradient(32, 16)] * 80, rate=4)
    yield "a clip of other colours", "video", clip(codec="ffv1", container="matroska", colours="yuv420p10le")
    for kind in (
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"v=0\nc=IN IP4 127.0.0.1\n",
    ):
        yield f"a list that names other files: {kind[:4]!r}", "video", kind
    yield "a GIF", "video", animation(5)
    yield "a picture", "video", picture()
    yield "a sound", "video", sound()
    yield "nothing", "video", b""
