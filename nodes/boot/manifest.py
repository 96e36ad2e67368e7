"""A run's manifest and a node's configuration: what a founder writes, and what a member takes or may not differ in."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace
from pydantic import JsonValue

from swarm.config import LoadedConfig, NodeConfig, Values
from swarm.environments.config import TaskConfig, custom_tool_tasks
from swarm.environments.sources.dataset import RowsTask
from swarm.environments.specs import (
    CODE,
    DIGEST,
    code_differs,
    differing_copy,
    files_digest,
    from_specs,
    has_code,
    is_founders_own,
    kind_in_run,
    lacks_code,
    left_out,
    to_specs,
)
from swarm.environments.tools.base import TRUSTED_TOOL
from swarm.errors import ConfigError, Refusal, TaskError
from swarm.net.records.identity import Identity
from swarm.net.records.wire import SealedManifest, is_outdated, make_run_id, open_manifest, seal_manifest
from swarm.sanitize import clean
from swarm.types import RunManifest, TaskSpec, Terms
from swarm.types.media import Modality

MEMBER_FIELDS = frozenset({"name", "kind", "weight", "public", "path", "revision", DIGEST, CODE, "scorer", "target"})
"""Settings of a task in which members may differ, or which are compared otherwise."""
MAX_SHOWN_CHARS = 60
NO_TASKS = "it lists none: its founder's use models or tools of its own, and it trusts nobody"


def found_run(
    config: NodeConfig, identity: Identity, earlier: RunManifest | None = None, terms: Terms | None = None
) -> SealedManifest:
    """A run with this configuration's tasks, group size, limits and mix; sealed by its founder.

    `terms` are those of a founder that is a learner. It supersedes `earlier`, the manifest of an earlier process, even
    if the clock is slightly slow. Raises `ConfigError` or `TaskError` if members would refuse it.
    """
    manifest = RunManifest(
        run_id=make_run_id(config.run_name, identity.peer_id),
        founder=identity.peer_id,
        created_at=time.time(),
        tasks=to_specs(config.tasks, config.trusted),
        group_size=config.generation.group_size,
        local=config.mix.local,
        external=config.mix.external,
        max_record_bytes=config.network.max_record_bytes,
        max_completion_chars=config.network.max_completion_chars,
        terms=terms,
        trusted=config.trusted,
    )
    if earlier is not None and is_outdated(manifest, earlier):
        manifest = replace(manifest, created_at=math.nextafter(earlier.created_at, math.inf))
    sealed = seal_manifest(identity, manifest)
    try:
        return SealedManifest(sealed, open_manifest(sealed))
    except Refusal as refusal:
        raise ConfigError(f"members would refuse this run: {refusal.detail}") from refusal


def left_run(earlier: RunManifest | None, now: RunManifest) -> str | None:
    """A warning where a directory leaves its `earlier` run for one of another name; None if it was in no other."""
    if earlier is None or earlier.run_id == now.run_id:
        return None
    return (
        f"this directory was in run {earlier.run_id} and now founds {now.run_id} (run_name): members of the "
        "earlier run stay there. Identity and checkpoints go on; --out with another directory starts again"
    )


def check_group_size(group_size: int, manifest: RunManifest | None) -> None:
    """Raises `ConfigError` when members of the run would refuse all groups of this size."""
    if manifest is not None and group_size > manifest.group_size:
        raise ConfigError(
            f"generation.group_size must be at most {manifest.group_size} in run {manifest.run_id}, got {group_size}: "
            "members refuse larger groups; leave it out to take the run's"
        )


def manifest_values(manifest: RunManifest, own: LoadedConfig | None = None) -> Values:
    """The run's settings as a layer of its members' configuration.

    `own` is the member's configuration without this layer: tasks that it lists replace the run's, it may have copies of
    the founder's local files and code, and what it can hold or wants to ask bounds what the run sets. Raises
    `TaskError` if no task is left, or a copy differs.
    """
    own_config = own.config if own is not None else NodeConfig()
    network, questions = own_config.network, own_config.generation.questions_per_round
    values: Values = {
        "generation": {"group_size": manifest.group_size},
        "mix": {"local": min(manifest.local, questions or manifest.local), "external": manifest.external},
        "network": {
            "max_record_bytes": min(manifest.max_record_bytes, network.inbox_bytes, network.shelf_bytes),
            "max_completion_chars": manifest.max_completion_chars,
        },
        "trusted": list(manifest.trusted),
    }
    if own is not None and "tasks" in own.origins:
        return values
    files, code = own_config.files, own_config.code
    trusted = own.config.trusted if own is not None and "trusted" in own.origins else manifest.trusted
    _check_use("files", files, "on its founder's files", filter(is_founders_own, manifest.tasks), manifest)
    _check_use("code", code, "with code of its founder's own", filter(has_code, manifest.tasks), manifest)
    left = left_out(manifest.tasks, files, code, trusted)
    tasks = from_specs((spec for spec in manifest.tasks if spec.name not in left), files, code, trusted)
    if not tasks:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left.items()) or NO_TASKS
        raise TaskError(
            f"none of the tasks of run {manifest.run_id} can be set up here; use a configuration with your own tasks "
            f"({reasons})"
        )
    listed: list[JsonValue] = [task.model_dump(mode="json") for task in tasks]
    return {"tasks": listed, **values}


def _check_use(
    field: str, given: Mapping[str, object], which: str, specs: Iterable[TaskSpec], manifest: RunManifest
) -> None:
    """Raises `TaskError` for a copy for which the run has no task."""
    for name in sorted(given.keys() - {spec.name for spec in specs}):
        raise TaskError(f"{field}.{name}: run {manifest.run_id} has no task of this name {which}")


def other_options(manifest: RunManifest, tasks: Sequence[TaskConfig]) -> list[str]:
    """How a member's own tasks differ from the run's of the same names, apart from where their rows or code are."""
    specs = {spec.name: spec for spec in manifest.tasks}
    found = {task.name: _other_option(specs[task.name], task) for task in tasks if task.name in specs}
    return [f"task {name}: {difference}" for name, difference in found.items() if difference]


def _other_option(spec: TaskSpec, task: TaskConfig) -> str:
    """Empty without a difference."""
    if spec.kind != kind_in_run(task):
        return f"it is of the kind {task.kind} here and {clean(spec.kind)} in the run"
    here: dict[str, object] = task.model_dump(mode="json", exclude_defaults=True)
    if custom_tool_tasks([task]):
        here["tool"] = TRUSTED_TOOL
    differing = [
        f"{clean(name)} is {clean(repr(here.get(name)), MAX_SHOWN_CHARS)} here and "
        f"{clean(repr(spec.settings.get(name)), MAX_SHOWN_CHARS)} in the run"
        for name in sorted(here.keys() | spec.settings.keys())
        if name not in MEMBER_FIELDS and here.get(name) != spec.settings.get(name)
    ]
    return ", ".join(differing)


def other_files(manifest: RunManifest, tasks: Sequence[TaskConfig]) -> list[str]:
    """How the local files and the code of a member's own tasks differ from those of the run's tasks of the same names.

    Their groups agree only where the rows do, and never with other code. Raises `TaskError` if files cannot be read.
    """
    targets = {task.name: target for task in tasks if (target := task.code) is not None}
    ran = [spec for spec in manifest.tasks if spec.name in targets and CODE in spec.settings]
    code = [problem for spec in ran if (problem := code_differs(spec, targets[spec.name])) is not None]
    paths = {task.name: Path(task.path) for task in tasks if isinstance(task, RowsTask) and task.is_on_disk}
    both = [spec for spec in manifest.tasks if spec.name in paths and files_digest(spec) is not None]
    return code + [problem for spec in both if (problem := differing_copy(spec, paths[spec.name])) is not None]


def lacking_files(manifest: RunManifest) -> list[str]:
    """The tasks of a run on local files or code that its founder did not have: the manifest lacks their digest."""
    return [
        spec.name
        for spec in manifest.tasks
        if (is_founders_own(spec) and files_digest(spec) is None) or lacks_code(spec)
    ]


def unreadable_tasks(manifest: RunManifest | None, readable: Collection[Modality]) -> frozenset[str]:
    """Names of the run's tasks with media that a policy which reads these modalities cannot read."""
    known = [task for spec in (manifest.tasks if manifest else ()) for task in _set_up(spec)]
    return frozenset(task.name for task in known if task.media - set(readable))


def _set_up(spec: TaskSpec) -> tuple[TaskConfig, ...]:
    """The task as this node can set it up; empty if it cannot."""
    try:
        return from_specs([spec])
    except TaskError:
        return ()


def sharing_of_own_tools(config: NodeConfig, peer_id: str) -> str | None:
    """Whether others learn from episodes with this node's custom tools, for people; None if it has none."""
    names = sorted(custom_tool_tasks(config.tasks))
    if not names:
        return None
    line = f"tools of your own answer {', '.join(names)}: "
    if peer_id in config.trusted:
        return f"{line}this node shares these episodes, with what the tools said"
    nothing = ", and so nothing at all" if len(names) == len(config.tasks) else ""
    return (
        f"{line}nobody else could check these episodes, so this node shares none of them{nothing}. In a run that lists "
        f"{peer_id} in `trusted` it would"
    )
