"""A peer's directory: one identity, one run, one process at a time."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from msgspec import Struct

from nodes.run import IDENTITY_FILE, found_run, remember, remembered
from swarm.config import NodeConfig
from swarm.errors import ConfigError, IdentityInUse
from swarm.net.identity import Identity
from swarm.net.wire import open_manifest


class Home(Struct, frozen=True):
    """Where a peer lives, and the run it is in."""

    out: Path
    identity: Identity
    sealed: bytes | None
    """The run's manifest; None while no bootstrap has answered and none is remembered."""


def claim_home(config: NodeConfig, out_was_given: bool, sealed: bytes | None) -> Home:
    """The directory of a peer of the run `sealed`, or of whatever run it remembers.

    `config.out` when it was given. Otherwise the first of `OUT`, `OUT-2`, ... that no running peer uses and that is of
    the same run: several terminals with the same command become several peers, and each resumes when started again.

    Raises `ConfigError` or `IdentityInUse` when the directory that was given is not free.
    """
    for number in count(1):
        out = config.out if number == 1 else config.out.with_name(f"{config.out.name}-{number}")
        try:
            return _claim(config, out, sealed)
        except (IdentityInUse, ConfigError):
            if out_was_given or config.network.identity:
                raise
    raise AssertionError("count() does not end")


def _claim(config: NodeConfig, out: Path, sealed: bytes | None) -> Home:
    out.mkdir(parents=True, exist_ok=True)
    kept = remembered(out)
    if sealed and kept and (ours := open_manifest(kept).run_id) != (asked := open_manifest(sealed).run_id):
        raise ConfigError(f"{out} belongs to run {ours}, not to {asked}; choose another directory with --out")
    identity = Identity.load_or_create(config.network.identity or out / IDENTITY_FILE)
    chosen = sealed or kept
    if not config.network.bootstrap and (chosen is None or open_manifest(chosen).founder == identity.peer_id):
        chosen = found_run(config, identity)  # again, with what the configuration says now
    if chosen:
        remember(out, chosen)
    return Home(out, identity, chosen)
