"""The decoders that a task needs; the libraries of others are not imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from swarm.distribution import how_to_install
from swarm.environments.decoding.settings import MediaSettings
from swarm.errors import TaskError
from swarm.types.media import Media, Modality

Decoder = Callable[[bytes, MediaSettings], Media]
"""Raises `Undecodable`."""


def decoders(task: str, settings: MediaSettings) -> Mapping[Modality, Decoder]:
    """By what they read. Raises `TaskError` without the extra `media`."""
    try:
        return {modality: _decoder(modality) for modality in sorted(settings.media)}
    except (ImportError, OSError) as error:  # OSError: soundfile without its library
        raise TaskError(f"task {task!r} reads media ({error}): {how_to_install('media')}") from error


def _decoder(modality: Modality) -> Decoder:
    match modality:
        case "image":
            from swarm.environments.decoding.pictures import read_picture

            return read_picture
        case "audio":
            from swarm.environments.decoding.sounds import read_sound

            return read_sound
        case "video":
            from swarm.environments.decoding.clips import read_clip

            return read_clip
