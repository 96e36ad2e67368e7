"""The source of a generated task, by its settings."""

from __future__ import annotations

from swarm.environments.generated.config import GeneratedTask, ShapesTask
from swarm.environments.generated.source import GeneratedSource
from swarm.protocols import TaskSource


def generated_source(config: GeneratedTask) -> TaskSource:
    """Imports only what the task needs. Raises `TaskError`."""
    if isinstance(config, ShapesTask):
        from swarm.environments.generated.shapes import make_shapes

        return GeneratedSource(config, make_shapes)
    raise AssertionError(f"no source makes questions of the kind {config.kind}")
