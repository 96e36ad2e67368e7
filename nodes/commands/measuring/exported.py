"""What `swarm export` writes beside a model so that `swarm evaluate` asks it as it was trained: tasks and sampling.

The tasks are in the form of a run's manifest, without paths and code of one's own: who downloads a model trusts it no
more than a run's founder.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct, structs
from pydantic import JsonValue

from swarm.config import LoadedConfig, NodeConfig, Values
from swarm.environments.config import TaskConfig
from swarm.environments.specs import from_specs, left_out, to_specs
from swarm.errors import ConfigError, TaskError
from swarm.policy.config import EXPORTED, read_exported
from swarm.types import Sampling, TaskSpec


class Trained(Struct, frozen=True):
    """How a policy was trained."""

    sampling: Sampling
    tasks: tuple[TaskSpec, ...]


def trained_as(config: NodeConfig) -> dict[str, object]:
    """What to keep of a run's configuration, as JSON values; tasks that no manifest could name are left out."""
    tasks = [spec for task in config.tasks for spec in _spec(task)]
    found: dict[str, object] = msgspec.to_builtins(Trained(config.generation.sampling(), tuple(tasks)))
    return found


def _spec(task: TaskConfig) -> tuple[TaskSpec, ...]:
    try:
        return to_specs([task])
    except TaskError:
        return ()


def exported_values(model: Path, own: LoadedConfig) -> tuple[Values, list[str]]:
    """The layer of configuration that a model directory brings, and a line for each of its tasks that is left out.

    `own` is the configuration without it, whose tasks replace the exported ones. Empty for a model that `swarm export`
    did not write, or that it wrote before it kept these. Raises `ConfigError`, and `TaskError` if no task is left.
    """
    known = read_exported(str(model)) or {}
    if "tasks" not in known:
        return {}, []
    try:
        trained = msgspec.convert(known, Trained)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{model / EXPORTED} cannot be read: {error}; export the checkpoint again") from error
    values: Values = {"generation": structs.asdict(trained.sampling)}  # all of it: the defaults here are others
    if "tasks" in own.origins:
        return values, []
    files, code = own.config.files, own.config.code
    left = left_out(trained.tasks, files, code)
    tasks = from_specs((spec for spec in trained.tasks if spec.name not in left), files, code)
    lines = [f"task {name} is left out: {reason}" for name, reason in left.items()]
    if not tasks:
        why = "; ".join(lines) or "no task could be exported"
        raise TaskError(f"{model} cannot be asked what it was trained on ({why}); name tasks by --config FILE")
    listed: list[JsonValue] = [task.model_dump(mode="json") for task in tasks]
    return {"tasks": listed, **values}, lines
