"""The decoders that a task needs; the libraries of others are not imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from swarm.distribution import how_to_install
from swarm.environments.decoding.settings import MediaSettings
from swarm.errors import TaskError
from swarm.kinds import Kinds
from swarm.types.media import Media, Modality

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
