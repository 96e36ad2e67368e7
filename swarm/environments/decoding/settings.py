"""Settings of a task whose rows hold pictures, sounds or clips."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, JsonValue

from swarm.settings import Settings
from swarm.types.media import MAX_FRAMES_PER_S, MAX_RATE, Modality

MAX_PATH_CHARS = 1_024
ColumnPath = Annotated[str, Field(min_length=1, max_length=MAX_PATH_CHARS)]


class MediaSettings(Settings):
    """Where a row's pictures, sounds and clips are, and how much of them is shown."""

    images: ColumnPath | None = None
    """Column, or path in it, with a picture or a list of them: as the library `datasets` stores them, as bytes, or in
    a local data set as paths of files in its folder. PNG, JPEG, WebP, BMP and GIF of one frame. `<image>` in the prompt
    says where one goes; without it they precede the last message."""
    audios: ColumnPath | None = None
    """As `images`, with sounds and `<audio>`: WAV, FLAC, Ogg and MP3. Several channels are mixed into one."""
    videos: ColumnPath | None = None
    """As `images`, with clips and `<video>`: MP4, WebM, Matroska and AVI, without their sound."""
    inline: tuple[Modality, ...] = Field((), max_length=3)
    """What the prompt's own messages hold, in lists such as `[{"type": "image", "image": ...}, {"type": "text",
    "text": ...}]`: `image`, `audio`, `video`."""
    max_pixels: int = Field(2**20, ge=64, le=2**22)
    """Larger pictures and frames are made smaller, each pixel the mean of a block."""
    max_seconds: float = Field(30.0, gt=0, le=3_600)
    """Rows with a longer sound or clip are passed over."""
    rate: int | None = Field(None, ge=1_000, le=MAX_RATE)
    """Samples a second to which sounds are converted; default: as in the file."""
    frames_per_s: float = Field(2.0, gt=0, le=MAX_FRAMES_PER_S)
    """Frames of a clip that are shown."""
    max_frames: int = Field(32, ge=1, le=4_096)
    """Rows with a clip of more such frames are passed over. So many of a clip's frames fit 16 MiB: larger ones are made
    smaller, of 32 to 174,762 pixels."""

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
