"""Thumbnails are PNGs that others read, small whatever they show."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as Pillow

from swarm.types.media import Audio, Image, Video
from swarm.types.thumbnails import GAP, MAX_FRAMES, MAX_PNG_BYTES, MAX_SIDE, as_url, png, thumbnail, thumbnails


def _read(content: bytes) -> NDArray[np.uint8]:
    with Pillow.open(io.BytesIO(content)) as found:
        assert (found.format, found.mode) == ("PNG", "RGB")
        return np.asarray(found)


def _noise(width: int, height: int, frames: int = 1) -> bytes:
    return os.urandom(width * height * 3 * frames)


@pytest.mark.parametrize(("width", "height"), [(1, 1), (32, 32), (7, 64), (64, 3)])
def test_a_small_picture_is_shown_as_it_is(width: int, height: int) -> None:
    pixels = _noise(width, height)
    assert _read(thumbnail(Image(width, height, pixels))).tobytes() == pixels


@pytest.mark.parametrize(("width", "height", "step"), [(65, 10, 2), (128, 100, 2), (129, 129, 3), (40, 640, 10)])
def test_of_a_large_one_every_nth_pixel_is_shown(width: int, height: int, step: int) -> None:
    pixels = _noise(width, height)
    found = _read(thumbnail(Image(width, height, pixels)))
    whole = np.frombuffer(pixels, np.uint8).reshape(height, width, 3)
    assert (found == whole[::step, ::step]).all() and max(found.shape) <= MAX_SIDE


def test_of_a_clip_some_frames_are_shown_side_by_side() -> None:
    frames = [bytes([k]) * (4 * 2 * 3) for k in range(8)]
    found = _read(thumbnail(Video(4, 2, 5.0, b"".join(frames))))
    gap = len(GAP) // 3
    assert found.shape == (2, MAX_FRAMES * 4 + (MAX_FRAMES - 1) * gap, 3)
    assert [int(found[0, k * (4 + gap), 0]) for k in range(MAX_FRAMES)] == [0, 2, 4, 6]
    assert _read(thumbnail(Video(4, 2, 5.0, frames[3]))).shape == (2, 4, 3), "a clip of one frame"


def test_the_largest_is_within_its_bytes() -> None:
    side = MAX_SIDE
    largest = thumbnail(Video(side, side, 1.0, _noise(side, side, MAX_FRAMES)))
    assert side * side * 3 * MAX_FRAMES < len(largest) <= MAX_PNG_BYTES
    assert as_url(largest)


def test_sounds_and_what_has_another_size_than_it_says_are_left_out() -> None:
    picture = Image(2, 2, bytes(12))
    broken = Image(2, 2, bytes(11)), Video(2, 2, 1.0, b""), Video(2, 2, 1.0, bytes(13))
    assert thumbnails([Audio(8_000, bytes(4)), *broken, picture], 4) == (thumbnail(picture),)
    assert len(thumbnails([picture] * 9, 4)) == 4


def test_only_a_png_of_a_thumbnail_s_size_gets_an_address() -> None:
    good = png([bytes(3)])
    assert as_url(good).startswith("data:image/png;base64,iVBOR")
    assert as_url(b"<svg onload='x'>") == as_url(b"") == as_url(good + bytes(MAX_PNG_BYTES)) == ""
