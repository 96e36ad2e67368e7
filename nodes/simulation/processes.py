"""A run as people start it: a bootstrap and its nodes, each a process of the `swarm` command, over loopback."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml
from pydantic import JsonValue

from nodes.boot.directory import ADDRESS_FILE
from nodes.simulation.cells import Values
from nodes.simulation.children import Child, Started, stop_all
from nodes.simulation.members import Member
from nodes.stop import Stop
from swarm.errors import Interrupted, TransportError

START_TIMEOUT_S = 300.0
POLL_S = 0.1
MAX_RESTARTS = 5
BOOTSTRAP = "bootstrap"
LOOPBACK: dict[str, JsonValue] = {
    "listen": ["/ip4/127.0.0.1/tcp/0"],
    "nat_port_map": False,
    "daemon_processors": 1,
}
"""Fields of `network` for nodes that share a machine: with one processor a daemon takes less time for the same gossip,
and several daemons find work for all cores. Entries in the directory are renewed no more often than elsewhere: nodes
that start together learn of each other from the first."""


def on_loopback(config: Values) -> Values:
    """A complete configuration, for nodes that share a machine."""
    network = config["network"]
    assert isinstance(network, dict)
    return {**config, "network": {**network, **LOOPBACK}}


def run_as_processes(members: Sequence[Member], folder: Path, stop: Stop, started: Started = lambda pid: None) -> None:
    """Run the members to their end, or until `stop`; `started` is told their processes, but not the bootstrap's.

    Raises `TransportError` when one keeps crashing.
    """
    files = [folder / f"{member.config.name}.yaml" for member in members]
    for member, file in zip(members, files, strict=True):
        file.write_text(yaml.safe_dump(member.config.model_dump(mode="json"), sort_keys=False))
    home = folder / BOOTSTRAP
    bootstrap = Child(BOOTSTRAP, [BOOTSTRAP, str(files[0]), "--out", str(home)], home)
    address = start_first(bootstrap, home, stop)
    nodes: list[Child] = []
    try:
        for member, file in zip(members, files, strict=True):
            config = member.config
            arguments = ["join", str(file), "--bootstrap", address]
            nodes.append(start_node(config.name, arguments, config.out, config.seed or 0, started))
        while not stop() and not all(node.finished for node in nodes):
            for child in (bootstrap, *nodes):
                look_after(child, lambda text, level: print(f"{level}: {text}", flush=True))
            time.sleep(POLL_S)
    finally:
        stop_all([bootstrap, *nodes])
    for node in nodes:
        if node.given_up:
            raise TransportError(f"{node.name} kept crashing; the end of its log:\n{node.last_words()}")


def start_first(child: Child, home: Path, stop: Stop) -> str:
    """Start the process that the others dial, and wait for its address in `home`.

    Raises `TransportError` if it does not start, `Interrupted` on a stop request; it is then stopped.
    """
    address_file = home / ADDRESS_FILE
    address_file.unlink(missing_ok=True)
    child.start()
    deadline = time.monotonic() + START_TIMEOUT_S
    while not address_file.exists():
        if stop() or not child.running or time.monotonic() > deadline:
            stop_all([child])
            if stop():
                raise Interrupted(f"stopped before the {child.name} had an address")
            raise TransportError(f"the {child.name} did not start; the end of its log:\n{child.last_words()}")
        time.sleep(POLL_S)
    return address_file.read_text().split()[0]


def start_node(name: str, arguments: Sequence[str], out: Path, seed: int, started: Started = lambda pid: None) -> Child:
    """Start a node with its questions' and samples' seed; `arguments`: command, configuration, bootstrap."""
    options = ["--name", name, "--out", str(out), "--seed", str(seed), "--no-report"]
    node = Child(name, [*arguments, *options], out, started=started)
    node.start()
    return node


def look_after(child: Child, tell: Callable[[str, str], None]) -> None:
    """Restart a crashed process from its checkpoint, a few times; `tell` gets text and level."""
    if child.running or child.finished:
        return
    if child.restarts >= MAX_RESTARTS:
        child.given_up = True
        tell(f"{child.name} crashed {child.restarts + 1} times; giving up: {child.last_words()}", "error")
        return
    tell(f"{child.name} died (exit code {child.exit_code}); restarting from its checkpoint", "warning")
    child.restarts += 1
    child.start()
