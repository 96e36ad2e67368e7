"""Tasks in a run's manifest: what the founder writes down, and what a stranger makes of it.

A manifest never makes a node open a file of its own disk. A task on local files travels as it is, so that members
see it; a member that has the files lists its tasks in its own configuration, and groups on a task it does not have are
counted there as `unknown_task`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import cast

from pydantic import TypeAdapter, ValidationError

from swarm.errors import TaskError
from swarm.tasks.config import DatasetTask, TaskConfig
from swarm.types import TaskSpec

FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".txt": "text"}
"""Suffixes of the local files a `DatasetTask` reads, and the `datasets` builder for each."""

_ADAPTER: TypeAdapter[TaskConfig] = TypeAdapter(TaskConfig)


def to_specs(configs: Iterable[TaskConfig]) -> tuple[TaskSpec, ...]:
    """Tasks as a manifest carries them."""
    return tuple(
        TaskSpec(
            name=config.name,
            kind=config.kind,
            weight=config.weight,
            settings=cast(
                dict[str, object],
                config.model_dump(mode="json", exclude_defaults=True, exclude={"name", "kind", "weight"}),
            ),
        )
        for config in configs
    )


def from_specs(specs: Iterable[TaskSpec]) -> tuple[TaskConfig, ...]:
    """The manifest's tasks that this node can try to set up: those on the founder's local files are left out.

    Raises `TaskError` for a specification that is not a valid configuration.
    """
    configs = [_from_spec(spec) for spec in specs]
    return tuple(config for config in configs if not is_on_disk(config))


def is_on_disk(config: TaskConfig) -> bool:
    """Whether a task reads local files rather than the hub or a generator."""
    if not isinstance(config, DatasetTask):
        return False
    path = Path(config.path)
    looks_local = config.path.startswith(("/", ".", "~", "\\")) or len(path.parts) > 2
    return looks_local or path.suffix.lower() in FORMATS or path.exists()


def _from_spec(spec: TaskSpec) -> TaskConfig:
    settings = {**spec.settings, "name": spec.name, "kind": spec.kind, "weight": spec.weight}
    try:
        return _ADAPTER.validate_python(settings)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise TaskError(f"the manifest's task {spec.name!r} cannot be set up here: {problems}") from error
