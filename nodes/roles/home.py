"""A peer's directory: one identity, one run, one process at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

from msgspec import Struct

from nodes.roles.run import IDENTITY_FILE, found_run, left_run, remember, remembered, reopen
from nodes.roles.shell import CHECKPOINTS
from swarm.config import NodeConfig
from swarm.errors import ConfigError, IdentityInUse
from swarm.files import private_directory
from swarm.foreign import clean
from swarm.net.records.identity import Identity
from swarm.net.records.wire import is_outdated
from swarm.training.checkpoint import CheckpointStore
from swarm.types import Terms


class Home(Struct, frozen=True):
    """A peer's directory and its run."""

    out: Path
    identity: Identity
    sealed: bytes | None
    """The run's manifest; None until a bootstrap answers, unless one was stored before."""
    warning: str | None = None
    """That it leaves another run."""


def claim_home(config: NodeConfig, out_was_given: bool, sealed: bytes | None, terms: Terms | None = None) -> Home:
    """Claim a directory for a peer of the run `sealed`, or of the stored run; `terms` are for one that it founds.

    `config.out` if it was set. Otherwise the first of `OUT`, `OUT-2`, ... that no running peer uses and that belongs to
    the same run and model: the same command in several terminals starts several peers, and each resumes when restarted.
    Raises `ConfigError` or `IdentityInUse` when the chosen directory is not free.
    """
    for number in count(1):
        out = config.out if number == 1 else config.out.with_name(f"{config.out.name}-{number}")
        kept = CheckpointStore(out / CHECKPOINTS)
        if not (out_was_given or config.network.identity) and kept.has_another_model(config.policy):
            continue
        try:
            return _claim(config, out, sealed, terms)
        except (IdentityInUse, ConfigError):
            if out_was_given or config.network.identity:
                raise
    raise AssertionError("count() does not end")


NOT_OF_THE_EXPERIMENT = frozenset(
    {"version", "name", "run_name", "out", "rounds", "files", "code", "verification", "network", "schedule"}
    | {"checkpoint", "evaluation", "telemetry"}
)
"""Fields that change nothing in what is learned."""
MAX_CHANGES = 8
"""Most changes that a line names."""
MAX_VALUE_CHARS = 60


def resumed(config: NodeConfig, role: str, tasks_of_the_run: bool) -> str | None:
    """What a node of this role goes on from in its directory, in words; None without a checkpoint.

    Raises `ConfigError` for a checkpoint of another experiment: of another role, with another objective or, unless the
    run sets them, other tasks. `checkpoint.resume_changed` allows it.
    """
    earlier = CheckpointStore(config.out / CHECKPOINTS).earlier()
    if earlier is None:
        return None
    changes = dict(_changes(earlier.config, config.model_dump(mode="json")))
    if earlier.role not in ("", role):
        changes["role"] = f"{earlier.role} -> {role}"
    said = [f"{path} {change}" for path, change in changes.items()]
    listed = ", ".join(
        [*said[:MAX_CHANGES], *([f"and {len(said) - MAX_CHANGES} more"] if len(said) > MAX_CHANGES else [])]
    )
    another = changes.keys() & {"update.objective", "role", *(() if tasks_of_the_run else ("tasks",))}
    if another and not config.checkpoint.resume_changed:
        raise ConfigError(
            f"{config.out} holds round {earlier.round} of another experiment; changed: {listed}. Choose another "
            "directory with --out, or go on from it all the same with --resume"
        )
    of = f"an earlier experiment; changed: {listed}" if changes else "this experiment"
    line = f"resumes round {earlier.round} of {of}"
    if config.rounds is not None and earlier.round >= config.rounds:
        line += (
            f"; its rounds are {config.rounds}, so nothing is left to do: give more with --rounds, or start over in "
            "another directory with --out"
        )
    return line


def _changes(earlier: Mapping[str, object], now: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted path, both values) of what differs; fields that the earlier configuration did not have do not."""
    for name, value in now.items():
        path = f"{prefix}{name}"
        before = earlier.get(name, value)
        if path in NOT_OF_THE_EXPERIMENT or before == value:
            continue
        if path == "tasks":
            if _asked(before) != _asked(value):
                yield path, f"{_names(before)} -> {_names(value)}"
        elif isinstance(before, dict) and isinstance(value, dict):
            yield from _changes(before, value, f"{path}.")
        else:
            yield path, f"{_short(before)} -> {_short(value)}"


def _asked(tasks: object) -> object:
    """Tasks without where their rows are and how often they are asked."""
    assert isinstance(tasks, list)
    return [{name: value for name, value in task.items() if name not in ("path", "weight")} for task in tasks]


def _names(tasks: object) -> str:
    assert isinstance(tasks, list)
    return clean("/".join(str(task.get("name")) for task in tasks), MAX_VALUE_CHARS)


def _short(value: object) -> str:
    return clean(f"{value:g}" if isinstance(value, float) else str(value), MAX_VALUE_CHARS)


def _claim(config: NodeConfig, out: Path, sealed: bytes | None, terms: Terms | None) -> Home:
    private_directory(out)
    kept = remembered(out)
    chosen = sealed or kept
    if sealed and kept:
        ours, asked = reopen(kept), reopen(sealed)
        if ours.run_id != asked.run_id:
            raise ConfigError(
                f"{out} belongs to run {ours.run_id}, not to {asked.run_id}; choose another directory with --out"
            )
        chosen = kept if is_outdated(asked, ours) else sealed
    identity = Identity.load_or_create(config.network.identity or out / IDENTITY_FILE)
    if not config.network.bootstrap and (chosen is None or reopen(chosen).founder == identity.peer_id):
        chosen = found_run(config, identity, kept, terms)  # again, with the current configuration
    if chosen:
        remember(out, chosen)
    return Home(out, identity, chosen, left_run(kept, chosen) if chosen else None)
