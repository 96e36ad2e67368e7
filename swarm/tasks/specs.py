"""Tasks in a run's manifest: what the founder writes down, and what a stranger makes of it.

A manifest never makes a node open a file of its own disk. A task on local files travels as it is, so that members
see it in the manifest; one who has the files configures a task of that name, anyone else goes without, and groups
on it are counted there as `unknown_task`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

from pydantic import TypeAdapter, ValidationError

from swarm.errors import TaskError
from swarm.tasks.config import DatasetTask, TaskConfig
from swarm.types import TaskSpec

LOCAL_SUFFIXES = frozenset({".json", ".jsonl", ".csv", ".tsv", ".parquet", ".txt"})
"""File formats that a `DatasetTask` reads."""

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


def from_specs(specs: Iterable[TaskSpec], own: Sequence[TaskConfig] = ()) -> tuple[TaskConfig, ...]:
    """The manifest's tasks that this node can try to set up; its own configuration of a name comes first.

    Tasks on the founder's local files are left out unless `own` has them.
    Raises `TaskError` for a specification that is not a valid configuration.
    """
    mine = {config.name: config for config in own}
    configs = [mine[spec.name] if spec.name in mine else _from_spec(spec) for spec in specs]
    return tuple(config for config in configs if config.name in mine or not is_on_disk(config))


def is_on_disk(config: TaskConfig) -> bool:
    """Whether a task reads local files rather than the hub or a generator."""
    if not isinstance(config, DatasetTask):
        return False
    path = Path(config.path)
    looks_local = config.path.startswith(("/", ".", "~", "\\")) or len(path.parts) > 2
    return looks_local or path.suffix.lower() in LOCAL_SUFFIXES or path.exists()


def _from_spec(spec: TaskSpec) -> TaskConfig:
    settings = {**spec.settings, "name": spec.name, "kind": spec.kind, "weight": spec.weight}
    try:
        return _ADAPTER.validate_python(settings)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise TaskError(f"the manifest's task {spec.name!r} cannot be set up here: {problems}") from error
