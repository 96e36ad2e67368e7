"""Files of images, audio and video in the rows of data sets: their settings, and what all decoders have in common.

The libraries of decoders that a task does not need are not imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

from pydantic import Field, JsonValue

from swarm.distribution import how_to_install
from swarm.errors import TaskError
from swarm.kinds import Kinds
from swarm.settings import Settings
from swarm.types.media import MAX_FRAMES_PER_S, MAX_RATE, Media, Modality

MAX_PATH_CHARS = 1_024
ColumnPath = Annotated[str, Field(min_length=1, max_length=MAX_PATH_CHARS)]
MAX_FILE_BYTES = 2**25
"""Size of a stored file."""
MAX_PROBLEM_CHARS = 200
_HANDLE = re.compile(r"<_io\.BytesIO[^>]*>|'?<none>'?")
"""What libraries call a file that is in memory."""


class MediaSettings(Settings):
    """Where a row's images, audio and video are, and how much of them is shown."""

    images: ColumnPath | None = None
    """Column, or path in it, with an image or a list of them: as the library `datasets` stores them, as bytes, or in
    a local data set as paths of files in its folder. PNG, JPEG, WebP, BMP and GIF of one frame. `<image>` in the prompt
    says where one goes; without it they precede the last message."""
    audios: ColumnPath | None = None
    """The same for audio and `<audio>`: WAV, FLAC, Ogg and MP3. Several channels are mixed into one."""
    videos: ColumnPath | None = None
    """The same for video and `<video>`: MP4, WebM, Matroska and AVI, without sound."""
    inline: tuple[Modality, ...] = Field((), max_length=3)
    """What the prompt's own messages hold, in lists such as `[{"type": "image", "image": ...}, {"type": "text",
    "text": ...}]`: `image`, `audio`, `video`."""
    max_pixels: int = Field(2**20, ge=64, le=2**22)
    """Larger images and frames are scaled down, each pixel the mean of a block."""
    max_seconds: float = Field(30.0, gt=0, le=3_600)
    """Rows with longer audio or video are skipped."""
    rate: int | None = Field(None, ge=1_000, le=MAX_RATE)
    """Samples a second to which audio is resampled; default: as in the file."""
    frames_per_s: float = Field(2.0, gt=0, le=MAX_FRAMES_PER_S)
    """Frames of a video that are shown."""
    max_frames: int = Field(32, ge=1, le=4_096)
    """Rows with a video of more such frames are skipped. So many of a video's frames fit 16 MiB: larger ones are scaled
    down, of 32 to 174,762 pixels."""

    @property
    def media_columns(self) -> dict[Modality, str]:
        """The columns, by what they hold."""
        columns: dict[Modality, str | None] = {"image": self.images, "audio": self.audios, "video": self.videos}
        return {modality: column for modality, column in columns.items() if column is not None}

    @property
    def shows_as(self) -> tuple[Mapping[str, JsonValue], ...]:
        """What decides what is shown, for digests; empty for text alone."""
        if not (self.media_columns or self.inline):
            return ()
        fields = set(MediaSettings.model_fields)
        return ({"media": self.model_dump(mode="json", include=fields, exclude_defaults=True)},)


Decoder = Callable[[bytes, MediaSettings], Media]
"""Raises `Undecodable`."""
DECODERS: Kinds[Decoder] = Kinds(
    "decoder",
    "swarm.decoders",
    "",
    {
        "image": "swarm.environments.decoding.pictures:read_picture",
        "audio": "swarm.extras.audio_video.sounds:read_sound",
        "video": "swarm.extras.audio_video.clips:read_clip",
    },
)
"""Decoders of files, by what they read."""


def decoders(task: str, settings: MediaSettings) -> Mapping[Modality, Decoder]:
    """Those that a task needs. Raises `TaskError` without the extra `media`."""
    try:
        needed: set[Modality] = {*settings.media_columns, *settings.inline}
        return {modality: DECODERS.find(modality) for modality in sorted(needed)}
    except (ImportError, OSError) as error:  # OSError: soundfile without its library
        raise TaskError(f"task {task!r} reads media ({error}): {how_to_install('media')}") from error
    except ValueError as error:
        raise TaskError(f"task {task!r}: {error}") from error


class Undecodable(Exception):
    """A file that is refused: the message says why."""


@contextmanager
def decoding(file: bytes, what: str) -> Iterator[None]:
    """Whatever a library raises on a file in this block is a reason to refuse the file: `Undecodable`."""
    if not file:
        raise Undecodable(f"{what}: the file is empty")
    if len(file) > MAX_FILE_BYTES:
        raise Undecodable(f"{what}: the file has {len(file)} bytes, more than {MAX_FILE_BYTES}")
    try:
        yield
    except Undecodable as error:
        raise Undecodable(f"{what}: {error}") from error
    except Exception as error:  # many readers of many formats, on foreign input
        said = " ".join(_HANDLE.sub("", f"{type(error).__name__}: {error}").split())
        raise Undecodable(f"{what}: {said[:MAX_PROBLEM_CHARS]}") from error
