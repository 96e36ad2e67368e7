"""`swarm bootstrap`: founds a run and serves a stable address for joining it. Trains nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from nodes import exits
from nodes.roles.run import (
    IDENTITY_FILE,
    NO_TASKS,
    best_address,
    found_run,
    lacking_files,
    left_run,
    on_same_ports,
    remember,
    remembered,
    reopen,
    warn,
    warn_of_readers,
    write_addresses,
)
from nodes.stop import StopRequest
from swarm.config import NodeConfig, load_config
from swarm.distribution import own_version
from swarm.net.backends import open_transport
from swarm.net.membership.member import Profile
from swarm.net.records.identity import Identity
from swarm.net.services.diagnosis import serve_diagnosis
from swarm.protocols import Transport

LOOK_EVERY_S = 0.2
REPORT_EVERY_S = 60.0


def bootstrap(file: Path | None, overrides: Sequence[tuple[str, str]], console: Console, supervised: bool) -> int:
    """Serve until a stop request. Writes the addresses to `OUT/multiaddrs`. Returns the exit code."""
    stop = StopRequest(supervised)
    config = load_config(file, None, os.environ, overrides).config
    warn_of_readers(config.out, console)
    identity = Identity.load_or_create(config.network.identity or config.out / IDENTITY_FILE)
    kept = remembered(config.out)
    sealed = found_run(config, identity, kept)
    remember(config.out, sealed)
    if left := left_run(kept, sealed):
        warn(left, console)
    if not reopen(sealed).tasks:
        warn(f"nobody can join with the tasks of this run: {NO_TASKS}", console)
    for name in lacking_files(sealed):
        warn(f"the files or code of the task {name} are not here, so nobody can join with a copy of them", console)
    profile = Profile(tasks=tuple(task.name for task in config.tasks), role="bootstrap", version=own_version())
    network = on_same_ports(config.network, config.out, console)
    transport = open_transport(network, identity, profile=profile, manifest=sealed)
    try:
        serve_diagnosis(transport)
        transport.start()
        _announce(transport, config, console)
        _serve(transport, stop, console)
    finally:
        transport.close()
        identity.close()
    return exits.INTERRUPTED


def _announce(transport: Transport, config: NodeConfig, console: Console) -> None:
    addresses = transport.multiaddrs()
    write_addresses(config.out, addresses, config.network.address_file)
    console.print(f"run {transport.status().run_id} is open; others join with", highlight=False)
    console.print(f"    swarm join {best_address(addresses)}", highlight=False, soft_wrap=True)
    for address in addresses:
        if address != best_address(addresses):
            console.print(f"also reachable at {address}", style="dim", highlight=False, soft_wrap=True)


def _serve(transport: Transport, stop: StopRequest, console: Console) -> None:
    """The network thread does the work; this one reports changes and discards received gossip."""
    shown, said_at = -1, 0.0
    while not stop():
        transport.drain()
        status = transport.status()
        connected = len(status.connected)
        now = time.monotonic()
        if connected != shown and (now - said_at > 1 or shown < 0) or now - said_at > REPORT_EVERY_S:
            split = f"; {status.split}" if status.split else ""
            console.print(
                f"{time.strftime('%H:%M:%S')} {connected} peer{'s' * (connected != 1)} connected{split}",
                highlight=False,
            )
            shown, said_at = connected, now
        time.sleep(LOOK_EVERY_S)
