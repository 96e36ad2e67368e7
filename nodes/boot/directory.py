"""A node's directory: one identity, one run, one process at a time; and what it refuses before anything starts.

Nothing heavy is imported here: commands that only look at directories need it, and refusals come at once.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import psutil
from msgspec import Struct, structs

from nodes.boot.manifest import found_run, left_run
from swarm.config import LoadedConfig, NodeConfig
from swarm.errors import ConfigError, DirectoryOfAnotherRun, IdentityInUse, Refusal
from swarm.files import private_directory, replace_file
from swarm.net.addresses.bootstrap import Bootstraps
from swarm.net.addresses.listening import check_free
from swarm.net.addresses.nat import most_reachable_first
from swarm.net.records.identity import Identity, check_unused
from swarm.net.records.wire import SealedManifest, is_outdated
from swarm.policy.config import check_model_path, check_peft
from swarm.sanitize import clean
from swarm.types import Terms

logger = logging.getLogger(__name__)

IDENTITY_FILE = "identity.key"
MANIFEST_FILE = "run.manifest"
PEERS_FILE = "peers.known"
ADDRESS_FILE = "multiaddrs"
LISTEN_FILE = "listen.last"
LOCK_FILE = f"{IDENTITY_FILE}.lock"
CHECKPOINTS = "checkpoints"

INVARIANT_FIELDS = frozenset(
    {"version", "name", "run_name", "out", "rounds", "files", "code", "verification", "network", "schedule"}
    | {"checkpoint", "evaluation", "telemetry"}
)
"""Fields that change nothing in what is learned."""
MAX_CHANGES = 8
"""Most changes that a line names."""
MAX_VALUE_CHARS = 60

DISK_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
    | {errno.ENOTDIR, errno.EISDIR}
)
"""Errors of files that a person can mend, and no mistake of the program."""


class RunDirectory(Struct, frozen=True):
    """A directory that this process has claimed, and its run."""

    out: Path
    identity: Identity
    run: SealedManifest | None
    """None until a bootstrap answers, unless a manifest was stored before."""
    warnings: tuple[str, ...] = ()
    """Whether others may read it, and that it leaves another run."""


def claim_directory(
    config: NodeConfig,
    out_was_given: bool,
    asked: SealedManifest | None = None,
    terms: Terms | None = None,
    founds: bool = False,
    role: str = "",
) -> RunDirectory:
    """Claim a directory for a node of the run `asked`, or of the stored run; `terms` are for one that it founds.

    `config.out` if it was set. Otherwise the first of `OUT`, `OUT-2`, ... that no running peer uses and that belongs to
    the same run and model, or, where none is joined, to the same experiment of this `role`: the same command in several
    terminals starts several peers, and each resumes when restarted.
    A run that the directory leaves another for is not stored: the caller does it once the node is sure to start.
    `founds`: in its own run always. Raises `ConfigError` or `IdentityInUse` when the chosen directory is not free.
    """
    chosen = out_was_given or config.network.identity is not None
    joins = asked is not None or bool(config.network.bootstrap)
    passed: list[str] = []
    for number in count(1):
        out = config.out if number == 1 else config.out.with_name(f"{config.out.name}-{number}")
        if not chosen and _has_another_model(config, out):
            continue
        if role and not (chosen or joins):
            try:
                resumed(config.model_copy(update={"out": out}), role, False)
            except ConfigError as error:
                passed.append(str(error).partition(". ")[0])
                continue
        try:
            claimed = _claim(config, out, asked, terms, founds)
            moved = tuple(f"{reason}; this one is in {out}" for reason in passed[:1])
            return structs.replace(claimed, warnings=(*claimed.warnings, *moved))
        except (IdentityInUse, DirectoryOfAnotherRun):
            if chosen:
                raise
    raise AssertionError("count() does not end")


def _has_another_model(config: NodeConfig, out: Path) -> bool:
    if not (out / CHECKPOINTS).is_dir():
        return False
    from swarm.training.checkpoint import CheckpointStore  # imports torch

    return CheckpointStore(out / CHECKPOINTS).has_another_model(config.policy)


def _claim(
    config: NodeConfig, out: Path, asked: SealedManifest | None, terms: Terms | None, founds: bool
) -> RunDirectory:
    is_private = private_directory(out)
    stored = remembered(out)
    run = asked or stored
    if asked and stored:
        if stored.manifest.run_id != asked.manifest.run_id:
            raise DirectoryOfAnotherRun(
                f"{out} belongs to run {stored.manifest.run_id}, not to {asked.manifest.run_id}; choose another "
                "directory with --out"
            )
        run = stored if is_outdated(asked.manifest, stored.manifest) else asked
    identity = Identity.load_or_create(config.network.identity or out / IDENTITY_FILE)
    is_own = run is None or run.manifest.founder == identity.peer_id
    earlier = stored.manifest if stored else None
    if founds or (is_own and not config.network.bootstrap):
        run = found_run(config, identity, earlier, terms)  # again, with the current configuration
    left = left_run(earlier, run.manifest) if run else None
    if run and left is None:
        remember(out, run.sealed)
    readers = (
        f"other users of this machine may read {out}, which is not this user's alone: choose a directory of your "
        "own with --out"
    )
    return RunDirectory(out, identity, run, (*(() if is_private else (readers,)), *((left,) if left else ())))


def remember(out: Path, sealed: bytes) -> None:
    """Store the manifest for a restart without reachable bootstraps."""
    path = out / MANIFEST_FILE
    if path.exists() and path.read_bytes() == sealed:
        return
    replace_file(path, sealed)


def remembered(out: Path) -> SealedManifest | None:
    """The manifest stored by an earlier process; None without a valid one, which is logged."""
    path = out / MANIFEST_FILE
    try:
        return SealedManifest.reopen(path.read_bytes())
    except FileNotFoundError:
        return None
    except Refusal as refusal:
        logger.warning("the run's manifest stored in %s is ignored: %s", path, refusal)
        return None


def write_addresses(out: Path, multiaddrs: Sequence[str], for_others: Path | None = None) -> None:
    """Write this node's addresses into its directory and `for_others`, the best first."""
    best = best_address(multiaddrs)
    best_first = sorted(multiaddrs, key=lambda each: each != best)
    lines = "".join(f"{address}\n" for address in best_first).encode()
    replace_file(out / ADDRESS_FILE, lines)
    if for_others is not None:
        try:
            replace_file(for_others, lines, mode=0o644)
        except OSError as error:
            raise ConfigError(f"network.address_file: cannot write {for_others}: {error.strerror or error}") from error


def best_address(multiaddrs: Sequence[str]) -> str:
    """The address to give to others: one that other machines can reach, if there is any."""
    reachable = [address for address in multiaddrs if "/127.0.0.1/" not in address and "/::1/" not in address]
    over_tcp = [address for address in reachable if "/tcp/" in address]
    return (*most_reachable_first(over_tcp or reachable), *multiaddrs, "(no address yet)")[0]


def resumed(config: NodeConfig, role: str, tasks_of_the_run: bool) -> str | None:
    """What a node of this role resumes in its directory, in words; None without a checkpoint.

    Raises `ConfigError` for a checkpoint of another experiment: of another role, with another objective or, unless the
    run sets them, other tasks. `checkpoint.resume_changed` allows it.
    """
    if not (config.out / CHECKPOINTS).is_dir():
        return None
    from swarm.training.checkpoint import CheckpointStore  # imports torch

    earlier = CheckpointStore(config.out / CHECKPOINTS).earlier()
    if earlier is None:
        return None
    changes = dict(_changes(earlier.config, config.model_dump(mode="json")))
    if earlier.role not in ("", role):
        changes["role"] = f"{earlier.role} -> {role}"
    said = [f"{path} {change}" for path, change in changes.items()]
    if len(said) > MAX_CHANGES:
        said = [*said[:MAX_CHANGES], f"and {len(said) - MAX_CHANGES} more"]
    listed = ", ".join(said)
    another = changes.keys() & {"update.objective", "role", *(() if tasks_of_the_run else ("tasks",))}
    if another and not config.checkpoint.resume_changed:
        raise ConfigError(
            f"{config.out} holds round {earlier.round} of another experiment; changed: {listed}. Choose another "
            "directory with --out, or go on from it all the same with --resume"
        )
    experiment = f"an earlier experiment; changed: {listed}" if changes else "this experiment"
    line = f"resumes round {earlier.round} of {experiment}"
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
        if path in INVARIANT_FIELDS or before == value:
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


def running_nodes() -> dict[Path, int]:
    """Directory and process id of every node on this machine, or in this container, that this user may inspect.

    A running node holds the lock of its identity. This function looks up the holder instead of trying the lock: taking
    it, even briefly, could make a starting node fail.
    """
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            for file in process.open_files():
                path = Path(file.path)
                if path.name == LOCK_FILE and path.exists():
                    found[path.parent] = process.pid
    return dict(sorted(found.items()))


def refuse_at_once(loaded: LoadedConfig) -> None:
    """Raises `ConfigError`, `IdentityInUse` or `TransportError` for what keeps a node from starting."""
    config = loaded.config
    Bootstraps(config.network.bootstrap)
    check_model_path(config.policy)
    check_peft(config.policy.lora)
    _check_writable(config.out)
    if config.schedule.gpu_idle_s is not None and os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError("schedule.gpu_idle_s: leave it out with several processes, which are other programs to it")
    if os.environ.get("RANK", "0") != "0":
        return  # among torchrun's processes the first is the node, which may have its directory and ports by now
    if "out" in loaded.origins or config.network.identity:
        check_unused(config.network.identity or config.out / IDENTITY_FILE)
    for address in config.network.listen:
        check_free(address)


def check_joins(loaded: LoadedConfig) -> None:
    """Raises `ConfigError` for a worker that was given no learner, and has worked for none in its directory."""
    config = loaded.config
    stored = None if config.network.bootstrap else remembered(config.out)
    if config.network.bootstrap or (stored and (stored.manifest.terms or config.follow.learner)):
        return
    raise ConfigError(
        "a worker needs the address of its learner, which `swarm learn` prints at its start: swarm work "
        f"/ip4/.../p2p/12D3KooW...; {config.out} has worked for none yet"
    )


def check_gives(loaded: LoadedConfig, command: str) -> None:
    """Raises `ConfigError` for a giver that was given no run, and was in none in its directory."""
    config = loaded.config
    if not config.network.bootstrap and remembered(config.out) is None:
        raise ConfigError(
            f"a giver needs the address of a member of a run, which prints it at its start: swarm {command} "
            "/ip4/.../p2p/12D3KooW... --endpoint http://127.0.0.1:8000/v1 --model NAME"
        )


def _check_writable(out: Path) -> None:
    there = out.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        raise ConfigError(f"out: {there} is a file; choose another directory with --out")
    if not os.access(there, os.W_OK):
        raise ConfigError(f"out: {there} cannot be written to by this user; choose another directory with --out")


def disk_problem(error: OSError) -> str | None:
    """What a person can do about an error of a file; None where that is nothing, and the error a mistake."""
    if error.errno not in DISK_ERRORS:
        return None
    where = f"{error.filename} cannot be written or read" if error.filename else "a file cannot be written or read"
    return f"{where}: {(error.strerror or str(error)).lower()}; free disk space, or choose another directory with --out"
