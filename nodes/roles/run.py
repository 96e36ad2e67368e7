"""A node's run: founds one, asks bootstraps for one, stores its manifest."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace
from pydantic import JsonValue
from rich.console import Console
from rich.text import Text

from swarm.config import NodeConfig, Values
from swarm.engines.config import GenerationSettings
from swarm.environments.specs import from_specs, to_specs, why_left_out
from swarm.errors import ConfigError, PeerUnreachable, Refusal, TaskError
from swarm.foreign import clean_lines
from swarm.net.addresses.bootstrap import Bootstraps
from swarm.net.addresses.nat import most_reachable_first
from swarm.net.backends import fetch_manifest
from swarm.net.config import NetworkSettings
from swarm.net.records.identity import Identity
from swarm.net.records.wire import is_outdated, make_run_id, open_manifest, seal_manifest
from swarm.types import RunManifest

logger = logging.getLogger(__name__)

IDENTITY_FILE = "identity.key"
MANIFEST_FILE = "run.manifest"
PEERS_FILE = "peers.known"
ADDRESS_FILE = "multiaddrs"
ASK_TIMEOUT_S = 20.0


def found_run(config: NodeConfig, identity: Identity, kept: bytes | None = None) -> bytes:
    """A run with this configuration's tasks, group size, limits and mix; sealed by its founder.

    It supersedes `kept`, the manifest of an earlier process, even if the clock is slightly slow. Raises `ConfigError`
    or `TaskError` if members would refuse it.
    """
    manifest = RunManifest(
        run_id=make_run_id(config.run_name, identity.peer_id),
        founder=identity.peer_id,
        created_at=time.time(),
        tasks=to_specs(config.tasks),
        group_size=config.generation.group_size,
        local=config.mix.local,
        external=config.mix.external,
        max_record_bytes=config.network.max_record_bytes,
        max_completion_chars=config.network.max_completion_chars,
    )
    if kept is not None and is_outdated(manifest, earlier := reopen(kept)):
        manifest = replace(manifest, created_at=math.nextafter(earlier.created_at, math.inf))
    sealed = seal_manifest(identity, manifest)
    try:
        open_manifest(sealed)
    except Refusal as refusal:
        raise ConfigError(f"members would refuse this run: {refusal.detail}") from refusal
    return sealed


def reopen(sealed: bytes) -> RunManifest:
    """Open a manifest that was checked on arrival, regardless of the current time."""
    return open_manifest(sealed, now=math.inf)


def manifest_values(manifest: RunManifest) -> Values:
    """The run's settings as a layer of its members' configuration. Raises `TaskError`."""
    tasks = from_specs(manifest.tasks)
    if not tasks:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out(manifest).items())
        raise TaskError(
            f"none of the tasks of run {manifest.run_id} can be set up here; use a configuration with your own tasks "
            f"({reasons})"
        )
    listed: list[JsonValue] = [task.model_dump(mode="json") for task in tasks]
    return {
        "tasks": listed,
        "generation": _room_for(manifest),
        "mix": {"local": manifest.local, "external": manifest.external},
        "network": {
            "max_record_bytes": manifest.max_record_bytes,
            "max_completion_chars": manifest.max_completion_chars,
        },
    }


def left_out(manifest: RunManifest) -> dict[str, str]:
    """By name: why this node omits tasks of the run."""
    return {spec.name: reason for spec in manifest.tasks if (reason := why_left_out(spec)) is not None}


def _room_for(manifest: RunManifest) -> Values:
    """Generation settings that allow the run's mix and group size."""
    default = GenerationSettings()
    return {
        "group_size": manifest.group_size,
        "questions_per_round": max(default.questions_per_round, manifest.local),
    }


def remember(out: Path, sealed: bytes) -> None:
    """Store the manifest for a restart without reachable bootstraps."""
    path = out / MANIFEST_FILE
    if path.exists() and path.read_bytes() == sealed:
        return
    staging = path.with_suffix(".partial")
    staging.write_bytes(sealed)
    staging.rename(path)


def remembered(out: Path) -> bytes | None:
    """The manifest stored by an earlier process; None without a valid one, which is logged."""
    path = out / MANIFEST_FILE
    try:
        sealed = path.read_bytes()
        reopen(sealed)
    except FileNotFoundError:
        return None
    except Refusal as refusal:
        logger.warning("the run's manifest stored in %s is ignored: %s", path, refusal)
        return None
    return sealed


def ask_bootstraps(settings: NetworkSettings, console: Console) -> bytes | None:
    """The sealed manifest of the bootstraps' run; None when there are none or none answers.

    Raises `ConfigError` for a bootstrap address without a peer id.
    """
    bootstraps = Bootstraps(settings.bootstrap)
    for entry, problem in bootstraps.look_up().items():
        warn(f"{entry}: {problem}", console)
    multiaddrs = bootstraps.multiaddrs()
    if not multiaddrs:
        return None
    try:
        return fetch_manifest(multiaddrs, ASK_TIMEOUT_S, run_id=settings.run_id, transport=settings.transport)[1]
    except PeerUnreachable as error:
        warn(f"{error}; training alone until one answers", console)
        return None


def warn(text: str, console: Console) -> None:
    """Print a line that contains foreign text."""
    console.print(Text(clean_lines(text), style="yellow"), soft_wrap=True)


def write_addresses(out: Path, multiaddrs: Sequence[str]) -> None:
    """Write this node's addresses into its directory, the best first."""
    best = best_address(multiaddrs)
    staging = out / f"{ADDRESS_FILE}.partial"
    staging.write_text("".join(f"{address}\n" for address in sorted(multiaddrs, key=lambda each: each != best)))
    staging.rename(out / ADDRESS_FILE)


def best_address(multiaddrs: Sequence[str]) -> str:
    """The address to give to others: one that other machines can reach, if there is any."""
    reachable = [address for address in multiaddrs if "/127.0.0.1/" not in address and "/::1/" not in address]
    over_tcp = [address for address in reachable if "/tcp/" in address]
    return (*most_reachable_first(over_tcp or reachable), *multiaddrs, "(no address yet)")[0]
