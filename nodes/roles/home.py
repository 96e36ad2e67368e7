"""A peer's directory: one identity, one run, one process at a time."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from msgspec import Struct

from nodes.roles.run import IDENTITY_FILE, found_run, left_run, remember, remembered, reopen
from nodes.roles.shell import CHECKPOINTS
from swarm.config import NodeConfig
from swarm.errors import ConfigError, IdentityInUse
from swarm.files import private_directory
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
