"""The source of a generated task, by its settings."""

from __future__ import annotations

from swarm.environments.generated.config import ClipTask, DigitsTask, GeneratedTask, ShapesTask, TonesTask
from swarm.environments.generated.source import GeneratedSource
from swarm.protocols import TaskSource


def generated_source(config: GeneratedTask) -> TaskSource:
    """Imports only what the task needs. Raises `TaskError`."""
    match config:
        case ShapesTask():
            from swarm.environments.generated.shapes import make_shapes

            return GeneratedSource(config, make_shapes)
        case DigitsTask():
            from swarm.environments.generated.digits import make_digits

            return GeneratedSource(config, make_digits, has_own_streams=True)
        case TonesTask():
            from swarm.environments.generated.tones import make_tones

            return GeneratedSource(config, make_tones)
        case ClipTask():
            from swarm.environments.generated.clip import make_clip

            return GeneratedSource(config, make_clip)
    raise AssertionError(f"no source makes questions of the kind {config.kind}")
