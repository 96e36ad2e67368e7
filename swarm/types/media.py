"""Images, audio and video: the parts of a question or observation that are not text.

They never travel between nodes. A reference names what they are made of, with a digest of their content; the receiver
makes them again and compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from math import ceil
from typing import Annotated, Literal

from msgspec import Meta, Struct

Modality = Literal["image", "audio", "video"]

MAX_SIDE = 4_096
"""Pixels of a picture's or frame's longer side."""
MAX_MEDIA_BYTES = 2**24
"""Decoded bytes of all media of a question, or of one episode's observations."""
MAX_MEDIA = 16
"""Pictures, sounds and clips of a question, or of one observation."""
MAX_RATE = 192_000
"""Samples of a sound in a second."""
MAX_FRAMES_PER_S = 240.0

Side = Annotated[int, Meta(ge=1, le=MAX_SIDE)]
Content = Annotated[bytes, Meta(min_length=1, max_length=MAX_MEDIA_BYTES)]


class Image(Struct, frozen=True, tag="image", weakref=True):
    """A picture."""

    width: Side
    height: Side
    pixels: Content
    """[height, width, 3] red, green and blue, a byte each."""

    @property
    def problem(self) -> str | None:
        """What is wrong with its size; None if nothing is."""
        return _differs(len(self.pixels), self.width * self.height * 3)

    def __str__(self) -> str:
        """For people, and for a policy's text where the picture itself cannot be."""
        return f"[image {self.width} x {self.height}]"


class Audio(Struct, frozen=True, tag="audio", weakref=True):
    """A sound of one channel."""

    rate: Annotated[int, Meta(ge=1, le=MAX_RATE)]
    """Samples a second."""
    samples: Content
    """[N] signed integers of 16 bits, least significant byte first."""

    @property
    def problem(self) -> str | None:
        """See `Image.problem`."""
        return _differs(len(self.samples), len(self.samples) // 2 * 2)

    def __str__(self) -> str:
        """See `Image`."""
        return f"[audio {len(self.samples) / 2 / self.rate:.2f} s]"


class Video(Struct, frozen=True, tag="video", weakref=True):
    """A clip without sound."""

    width: Side
    height: Side
    frames_per_s: Annotated[float, Meta(gt=0, le=MAX_FRAMES_PER_S)]
    frames: Content
    """[F, height, width, 3] as a picture's pixels."""

    @property
    def num_frames(self) -> int:
        """Whole frames."""
        return len(self.frames) // (self.width * self.height * 3)

    @property
    def problem(self) -> str | None:
        """See `Image.problem`."""
        size = self.width * self.height * 3
        return _differs(len(self.frames), size * ceil(len(self.frames) / size))

    def __str__(self) -> str:
        """See `Image`."""
        return f"[video {self.width} x {self.height}, {self.num_frames} frames]"


Media = Image | Audio | Video


def modality(part: Media) -> Modality:
    """What a policy needs to read a part."""
    match part:
        case Image():
            return "image"
        case Audio():
            return "audio"
        case Video():
            return "video"


def content(part: Media) -> bytes:
    """What was decoded, without its shape."""
    match part:
        case Image():
            return part.pixels
        case Audio():
            return part.samples
        case Video():
            return part.frames


def media_digest(parts: Sequence[Media]) -> str:
    """32 hexadecimal digits of kind, shape and content of all parts, in order; empty without any."""
    if not parts:
        return ""
    hashed = blake2b(digest_size=16)
    for part in parts:
        match part:
            case Image():
                shape = f"image {part.width} {part.height}"
            case Audio():
                shape = f"audio {part.rate}"
            case Video():
                shape = f"video {part.width} {part.height} {part.frames_per_s!r}"
        hashed.update(f"{shape} {len(content(part))}\n".encode())
        hashed.update(content(part))
    return hashed.hexdigest()


def media_problem(parts: Sequence[Media]) -> str | None:
    """Why the media of a question or of an observation are refused; None if they are as they should be."""
    if len(parts) > MAX_MEDIA:
        return f"{len(parts)} pictures, sounds and clips, more than {MAX_MEDIA}"
    if (num_bytes := sum(len(content(part)) for part in parts)) > MAX_MEDIA_BYTES:
        return f"pictures, sounds and clips of {num_bytes} bytes, more than {MAX_MEDIA_BYTES}"
    return next((f"{part} {part.problem}" for part in parts if part.problem), None)


def _differs(found: int, expected: int) -> str | None:
    return None if found == expected else f"has {found} bytes, must have {expected}"
