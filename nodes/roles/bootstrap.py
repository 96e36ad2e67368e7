"""`swarm bootstrap`: founds a run and serves a stable address for joining it. Trains nothing."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial

from rich.console import Console

from nodes import exits
from nodes.boot.assemble import open_network
from nodes.boot.directory import best_address, claim_directory, remember, write_addresses
from nodes.boot.listing import Lister
from nodes.boot.manifest import NO_TASKS, lacking_files
from nodes.console import warn
from nodes.stop import StopRequest
from swarm.config import LoadedConfig, NodeConfig
from swarm.distribution import own_version
from swarm.net.backends import fetch_manifest
from swarm.net.config import NetworkSettings
from swarm.net.membership.member import Profile
from swarm.net.records.wire import SealedManifest
from swarm.net.services.diagnosis import serve_diagnosis
from swarm.net.services.runs import CHECK_S, RunIndex, serve_listings, serve_runs
from swarm.protocols import Transport

LOOK_EVERY_S = 0.2
REPORT_EVERY_S = 60.0


def bootstrap(loaded: LoadedConfig, console: Console, *, supervised: bool) -> int:
    """Serve until a stop request. Writes the addresses to `OUT/multiaddrs`. Returns the exit code."""
    stop = StopRequest(supervised)
    config = loaded.config
    directory = claim_directory(config, True, founds=True)
    assert directory.run is not None  # it is founded here
    remember(config.out, directory.run.sealed)
    with ExitStack() as stack:
        stack.callback(directory.identity.close)
        for warning in directory.warnings:
            warn(console, warning)
        if not directory.run.manifest.tasks:
            warn(console, f"nobody can join with the tasks of this run: {NO_TASKS}")
        for name in lacking_files(directory.run.manifest):
            warn(console, f"the files or code of the task {name} are not here, so nobody can join with a copy of them")
        if config.telemetry.site is not None:
            warn(console, "telemetry.site: a bootstrap makes no page; run `swarm site OUT ADDRESS` with its address")
        profile = Profile(tasks=tuple(task.name for task in config.tasks), role="bootstrap", version=own_version())
        transport, _ = open_network(config.network, directory, profile, console)
        stack.callback(transport.close)
        serve_diagnosis(transport)
        index = RunIndex()
        serve_runs(transport, index)
        serve_listings(transport, index, partial(_manifest_at, config.network))
        transport.start()
        _announce(transport, config, console)
        lister = Lister(config.network.list_at, transport, lambda text, level: _say(console, text))
        stack.callback(lister.close)
        _serve(transport, stop, console)
    return exits.INTERRUPTED


def _manifest_at(network: NetworkSettings, address: str, run_id: str) -> SealedManifest:
    return fetch_manifest((address,), CHECK_S, run_id=run_id, transport=network.transport)


def _say(console: Console, text: str) -> None:
    console.print(f"{time.strftime('%H:%M:%S')} {text}", markup=False, highlight=False)


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
