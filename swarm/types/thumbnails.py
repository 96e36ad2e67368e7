"""Small PNGs of pictures and clips, for people who read samples: bounded in size, and written without a library."""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Sequence

from swarm.types.media import Image, Media, Video, content

MAX_SIDE = 64
"""Pixels of a longer side; what is larger is shown by every Nth pixel of every Nth row."""
MAX_FRAMES = 4
"""Frames of a clip, evenly spaced and side by side."""
MAX_PNG_BYTES = 2**16
"""More than any thumbnail has: noise cannot be compressed, and takes 49 kB in four frames."""
SIGNATURE = b"\x89PNG\r\n\x1a\n"
EIGHT_BIT_RGB = b"\x08\x02\x00\x00\x00"
GAP = b"\x80\x80\x80" * 2
"""Grey pixels between two frames."""


def thumbnails(parts: Sequence[Media], most: int) -> tuple[bytes, ...]:
    """PNGs of the first `most` pictures and clips; sounds are left out."""
    seen = [part for part in parts if isinstance(part, Image | Video) and content(part) and part.problem is None]
    return tuple(thumbnail(part) for part in seen[:most])


def thumbnail(part: Image | Video) -> bytes:
    """One PNG of a picture or clip."""
    if isinstance(part, Image):
        frames = [part.pixels]
    else:
        size = part.width * part.height * 3
        count = min(MAX_FRAMES, part.num_frames)
        chosen = [k * part.num_frames // count for k in range(count)]
        frames = [part.frames[k * size : (k + 1) * size] for k in chosen]
    rows = [
        GAP.join(pieces) for pieces in zip(*(_shrunk(part.width, part.height, each) for each in frames), strict=True)
    ]
    return png(rows)


def png(rows: Sequence[bytes]) -> bytes:
    """A PNG of rows of red, green and blue, a byte each."""
    size = (len(rows[0]) // 3).to_bytes(4, "big") + len(rows).to_bytes(4, "big")
    unfiltered = b"".join(b"\x00" + row for row in rows)
    chunks = (b"IHDR", size + EIGHT_BIT_RGB), (b"IDAT", zlib.compress(unfiltered, 9)), (b"IEND", b"")
    return SIGNATURE + b"".join(map(_chunk, *zip(*chunks, strict=True)))


def as_url(png: bytes) -> str:
    """A PNG as the address of an image that a page has in itself; empty for what is no thumbnail."""
    if not png.startswith(SIGNATURE) or len(png) > MAX_PNG_BYTES:
        return ""
    return f"data:image/png;base64,{b64encode(png).decode()}"


def _chunk(kind: bytes, content: bytes) -> bytes:
    checked = kind + content
    return len(content).to_bytes(4, "big") + checked + zlib.crc32(checked).to_bytes(4, "big")


def _shrunk(width: int, height: int, pixels: bytes) -> list[bytes]:
    """Every Nth row of every Nth pixel."""
    step = -(-max(width, height) // MAX_SIDE)
    rows = []
    for top in range(0, height, step):
        row = pixels[top * width * 3 : (top + 1) * width * 3]
        kept = bytearray(3 * -(-width // step))
        for colour in range(3):
            kept[colour::3] = row[colour :: 3 * step]
        rows.append(bytes(kept))
    return rows
