"""Resolves what a node is to be from its configuration, its directory and its run: no console, no network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nodes.boot.directory import RunDirectory, remembered, resumed
from nodes.boot.manifest import manifest_values, other_files, other_options
from nodes.roles.role import RoleNode
from swarm.config import LoadedConfig, NodeConfig, overlay
from swarm.environments.judge import lacking_raters, other_judges
from swarm.environments.specs import left_out
from swarm.errors import ConfigError, SwarmError
from swarm.kinds import extra
from swarm.net.records.wire import SealedManifest
from swarm.policy.config import MADE_HERE, SMOLLM2, local_name
from swarm.telemetry.alerts import HIGH_LEARNING_RATE, USUAL_LEARNING_RATES, high_learning_rate
from swarm.types import RunManifest


class Notice(NamedTuple):
    """A line for people."""

    text: str
    is_warning: bool = True


@dataclass(frozen=True)
class ResolvedNode:
    """What a node is to be; its parts are not open yet."""

    role: type[RoleNode]
    config: NodeConfig
    """The run's values included, without the run's tasks that this node cannot have."""
    directory: RunDirectory
    tasks_of_the_run: bool
    """Whether the run sets the tasks, and not this node's own configuration."""
    loaded: LoadedConfig
    """The configuration in the run, with all tasks."""

    @property
    def manifest(self) -> RunManifest | None:
        """The run's; None while it is unknown."""
        return self.directory.run.manifest if self.directory.run else None

    def differences(self) -> Iterator[str]:
        """What this node does otherwise than its run asks, for people. Raises `TaskError`."""
        config, manifest = self.loaded.config, self.manifest
        if manifest is None:
            return
        if self.tasks_of_the_run:
            for name, reason in left_out(manifest.tasks, config.files, config.code, config.trusted).items():
                yield _omitted(name, reason)
        elif manifest.founder != self.directory.identity.peer_id:
            for difference in other_files(manifest, config.tasks):
                yield f"{difference}, or learn only from rows that agree"
            for difference in other_options(manifest, config.tasks):
                yield f"{difference}: groups of members that differ count for neither; take the run's"


def check_settings(config: NodeConfig) -> str | None:
    """A warning about a configuration by itself. Raises `SwarmError` for what this machine cannot run."""
    from swarm.policy.smollm import check_smollm2
    from swarm.preflight.check import check_policy
    from swarm.training.gradient import check_own_code

    if config.policy.model == SMOLLM2:
        check_smollm2()
    check_policy(config.policy)
    check_own_code(config.update, config.generation.group_size)
    if (rate := config.update.learning_rate) < HIGH_LEARNING_RATE:
        return None
    return f"{high_learning_rate(rate)} {USUAL_LEARNING_RATES}"


def check_recorded(config: NodeConfig) -> None:
    """Raises `ConfigError` for recorded groups or demonstrations from which there is nothing to learn. A node that has
    begun needs its demonstrations no more."""
    if (path := config.pool.recorded) is not None:
        extra("recorded.author").RecordedAuthor.of(path, 1, 0, lambda text, level: None)
    if config.demonstrations.path is not None and remembered(config.out) is None:
        extra("recorded.course").Course.of(config.demonstrations, 0, lambda text, level: None)


def fitted(loaded: LoadedConfig) -> tuple[LoadedConfig, list[str]]:
    """The configuration with defaults that fit its model, and what to say of the model, a line each.

    Raises `PolicyError` for a model that is nowhere to be had, or whose files cannot be read.
    """
    from swarm.policy.published import (
        SUGGESTED,
        THINKING_TOKENS,
        positions_of,
        suggested_sampling,
        switch_of_thinking,
        thinks,
    )
    from swarm.policy.reading import check_hub

    policy = loaded.config.policy
    if policy.model in MADE_HERE:
        return loaded, []
    check_hub(policy.model, policy.revision)  # before the hub's client asks for files, again and again
    lines = []
    if thinks(policy):
        if "generation.max_new_tokens" not in loaded.origins:
            longest = min(THINKING_TOKENS, (positions_of(policy) or 2 * THINKING_TOKENS) // 2)
            loaded = loaded.above({"generation": {"max_new_tokens": longest}}, "default for a model that thinks")
        ways = "generation.max_thinking_tokens limits its thoughts"
        if switch := switch_of_thinking(policy):
            ways += f", policy.chat_template_kwargs.{switch} changes whether or how it thinks"
        lines.append(
            f"{local_name(policy.model)} thinks before it answers: completions have up to "
            f"{loaded.config.generation.max_new_tokens} tokens (generation.max_new_tokens); {ways}"
        )
    used = loaded.config.generation.model_dump(include={*SUGGESTED})
    suggested = suggested_sampling(policy)
    unset = {name: value for name, value in suggested.items() if f"generation.{name}" not in loaded.origins}
    if other := {name: value for name, value in unset.items() if value != used[name]}:
        listed = ", ".join(f"{name} {value:g}" for name, value in other.items())
        lines.append(
            f"the publisher of {local_name(policy.model)} suggests {listed}; nothing of it is used unless "
            f"generation.{next(iter(other))} and the like are set"
        )
    return loaded, lines


def described(loaded: LoadedConfig) -> tuple[LoadedConfig, list[str]]:
    """The same as `fitted`, but for display: a line says which model's files cannot be read."""
    try:
        return fitted(loaded)
    except SwarmError as error:
        return loaded, [f"defaults that depend on the model are not shown: {error}"]


def resolve(
    role: type[RoleNode],
    loaded: LoadedConfig,
    directory: RunDirectory,
    asked: SealedManifest | None,
    num_processes: int,
    notices: list[Notice],
) -> ResolvedNode:
    """The node of a claimed directory; `asked` is the manifest that a bootstrap sent, `loaded` has no run's values.

    Appends lines for people to `notices`, also before it raises `SwarmError`.
    """
    manifest = directory.run.manifest if directory.run else None
    peer_id = directory.identity.peer_id
    if asked and asked != directory.run:
        notices.append(Notice("the bootstrap sent an older manifest of this run; keeping the stored one"))
    if manifest and not (loaded.config.network.bootstrap or role.founds):
        notices.append(Notice(_whose_run(role, manifest, peer_id), is_warning=False))
    values = overlay(manifest_values(manifest, loaded), role.values_of(manifest)) if manifest else {}
    loaded = loaded.in_run(values, directory.out)
    tasks_of_the_run = loaded.origins.get("tasks") == "manifest"
    if manifest:
        role.check(loaded.config, manifest, peer_id)
    config = possible(loaded.config, tasks_of_the_run, notices, role.has_policy)
    if (resuming := resumed(config, role.role, tasks_of_the_run)) is not None:
        notices.append(Notice(resuming))
    _check_sharing(role.role, config)
    notices += map(Notice, directory.warnings)
    for field, path in (("demonstrations.path", config.demonstrations.path), ("pool.recorded", config.pool.recorded)):
        if path is not None and role.role != "peer":
            notices.append(Notice(f"{field} is for `swarm join`, and is not used here"))
    if role.has_policy:
        from swarm.preflight.check import check_start

        if short := check_start(config, role.duties, num_processes):
            notices.append(Notice(short))
    return ResolvedNode(role, config, directory, tasks_of_the_run, loaded)


def _check_sharing(role: str, config: NodeConfig) -> None:
    """Raises `ConfigError` for a node that would share episodes which members cannot replay."""
    names = [task.name for task in config.tasks if not task.is_replayable]
    if names and role not in ("learner", "worker") and config.share.groups != "none":
        raise ConfigError(
            f"tasks {', '.join(names)}: no other machine could replay episodes against a model; name them in a suite "
            "(evaluation.suites) instead of here, or set share.groups to none to learn from them alone"
        )


def possible(config: NodeConfig, tasks_of_the_run: bool, notices: list[Notice], has_policy: bool = True) -> NodeConfig:
    """The configuration without the run's tasks for which this node lacks a judge, a reward service, or a policy that
    reads their media.

    Raises `ConfigError` if these tasks are the node's own, or all, and `PolicyError`.
    """
    for difference in other_judges(config.tasks, config.judge):
        notices.append(Notice(f"{difference}: groups may be rated differently here"))
    config = _without(config, lacking_raters(config.tasks, config.raters), tasks_of_the_run, notices)
    return _without(config, _unreadable(config, has_policy), tasks_of_the_run, notices)


def _unreadable(config: NodeConfig, has_policy: bool) -> dict[str, str]:
    """The tasks that this node's policy cannot read, by name with the reason; an endpoint is asked in text. Raises
    `PolicyError`."""
    needed = {task.name: needs for task in config.tasks if (needs := task.media)}
    if not needed:
        return {}
    readable, whose = frozenset[str](), "an endpoint"
    if has_policy:
        from swarm.policy.media.processor import modalities_of

        readable, whose = modalities_of(config.policy), config.policy.model
    return {
        name: f"its questions have media ({', '.join(sorted(needs))}) that {whose} cannot read"
        for name, needs in needed.items()
        if needs - readable
    }


def _without(
    config: NodeConfig, lacking: Mapping[str, str], tasks_of_the_run: bool, notices: list[Notice]
) -> NodeConfig:
    kept = tuple(task for task in config.tasks if task.name not in lacking)
    if lacking and not (tasks_of_the_run and kept):
        raise ConfigError("; ".join(f"task {name}: {reason}" for name, reason in lacking.items()))
    notices += (Notice(_omitted(name, reason)) for name, reason in lacking.items())
    return config.model_copy(update={"tasks": kept})


def _omitted(name: str, reason: str) -> str:
    return f"omitting the run's task {name}: {reason}"


def _whose_run(role: type[RoleNode], manifest: RunManifest, peer_id: str) -> str:
    """Whose run a node is in that was given no address."""
    if manifest.founder == peer_id:
        return (
            f"no address was given: this node founds a run, and is {role.alone} until others join it; to join "
            f"another's: swarm {role.invites} ADDRESS, which a member prints at its start"
        )
    return f"no address was given: this node goes on in the run {manifest.run_id}, in which its directory was before"
