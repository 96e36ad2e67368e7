"""What can be refused at once: before imports that take seconds, before a download, before anything starts."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from nodes.roles.run import IDENTITY_FILE, remembered, reopen
from swarm.config import LoadedConfig
from swarm.errors import ConfigError
from swarm.net.addresses.bootstrap import Bootstraps
from swarm.net.addresses.listening import check_free
from swarm.net.records.identity import check_unused
from swarm.policy.config import check_model_path, check_peft

OF_THE_DISK = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EIO}
)
"""Errors of files that a person can mend, and no mistake of the program."""


def check_start(loaded: LoadedConfig) -> None:
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
    kept = None if config.network.bootstrap else remembered(config.out)
    if config.network.bootstrap or (kept and (reopen(kept).terms or config.follow.learner)):
        return
    raise ConfigError(
        "a worker needs the address of its learner, which `swarm learn` prints at its start: swarm work "
        f"/ip4/.../p2p/12D3KooW...; {config.out} has worked for none yet"
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
    if error.errno not in OF_THE_DISK:
        return None
    where = f"{error.filename} cannot be written or read" if error.filename else "a file cannot be written or read"
    return f"{where}: {(error.strerror or str(error)).lower()}; free disk space, or choose another directory with --out"
