"""Tasks in a run's manifest: converts the founder's configuration, and reads it on other nodes.

A manifest never makes a node open a local file: its data sets are public repositories of the hub. A task on local files
is listed without their path; a member that has the files lists the task in its own configuration, and other members
count its groups as `unknown_task`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import cast

from pydantic import TypeAdapter, ValidationError

from swarm.environments.config import DatasetTask, TaskConfig, is_hub_id
from swarm.errors import TaskError
from swarm.foreign import clean
from swarm.types import TaskSpec

LOCAL = "local"
"""Replaces the path of local files wherever others can see it."""
MAX_PROBLEM_CHARS = 1_000

FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".txt": "text"}
"""Suffixes of the local files a `DatasetTask` reads, and the `datasets` builder for each."""

_ADAPTER: TypeAdapter[TaskConfig] = TypeAdapter(TaskConfig)
_KINDS = frozenset({"reasoning_gym", "dataset"})


def to_specs(configs: Iterable[TaskConfig]) -> tuple[TaskSpec, ...]:
    """Tasks in the form of a manifest. Raises `TaskError` for one that members would refuse."""
    return tuple(_to_spec(config) for config in configs)


def from_specs(specs: Iterable[TaskSpec]) -> tuple[TaskConfig, ...]:
    """The manifest's tasks that this node can try to set up, without those for which `why_left_out` has a reason.

    Raises `TaskError` for a specification that is not a valid configuration.
    """
    return tuple(_from_spec(spec) for spec in specs if why_left_out(spec) is None)


def why_left_out(spec: TaskSpec) -> str | None:
    """Why a task of a run cannot be this node's, though nothing is wrong with it; None when it can."""
    if is_founders_own(spec):
        return "it is on local files of the run's founder"
    if spec.kind not in _KINDS:
        return f"this version of swarm knows no tasks of the kind {spec.kind}; a later one may"
    return None


def is_founders_own(spec: TaskSpec) -> bool:
    """Whether a task uses the founder's local files. Does not check this node's disk, which would reveal its
    content."""
    path = spec.settings.get("path")
    return spec.kind == "dataset" and isinstance(path, str) and (path == LOCAL or _looks_local(path))


def is_on_disk(config: TaskConfig) -> bool:
    """Whether a task reads local files rather than the hub or a generator."""
    if not isinstance(config, DatasetTask) or config.public:
        return False
    if _looks_local(config.path):
        return True
    with suppress(OSError):  # a text too long for a path is not one
        return Path(config.path).exists()
    return False


def _looks_local(path: str) -> bool:
    parts = Path(path)
    return path.startswith(("/", ".", "~", "\\")) or len(parts.parts) > 2 or parts.suffix.lower() in FORMATS


def _to_spec(config: TaskConfig) -> TaskSpec:
    dumped = config.model_dump(mode="json", exclude_defaults=True, exclude={"name", "kind", "weight", "public"})
    settings = cast(dict[str, object], dumped)
    if is_on_disk(config):
        settings["path"] = LOCAL
    elif isinstance(config, DatasetTask) and not is_hub_id(config.path):
        raise TaskError(
            f"task {config.name!r}: a run's data set must be OWNER/NAME on the hub, got {config.path!r}; members would "
            "refuse it"
        )
    return TaskSpec(name=config.name, kind=config.kind, weight=config.weight, settings=settings)


def _from_spec(spec: TaskSpec) -> TaskConfig:
    settings = {**spec.settings, "name": spec.name, "kind": spec.kind, "weight": spec.weight}
    if spec.kind == "dataset":
        settings["public"] = True
    try:
        return _ADAPTER.validate_python(settings)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        text = clean(f"the manifest's task {spec.name!r} cannot be set up here: {problems}", MAX_PROBLEM_CHARS)
        raise TaskError(text) from error
