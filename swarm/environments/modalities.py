"""What a policy must be able to read for a task's questions, besides text."""

from __future__ import annotations

from swarm.environments.config import DatasetTask, PythonTask
from swarm.environments.episodes.config import EnvironmentTask
from swarm.environments.generated.config import GeneratedTask
from swarm.settings import Settings
from swarm.types.media import Modality


def modalities(config: Settings) -> frozenset[Modality]:
    """The kinds of media in a task's questions and observations, known from its settings alone."""
    match config:
        case GeneratedTask() | EnvironmentTask():
            return config.shows
        case PythonTask():
            return frozenset(config.modalities)
        case DatasetTask():
            return config.media
    return frozenset()
