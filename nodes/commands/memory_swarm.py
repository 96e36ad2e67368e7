"""All nodes of a simulation in one process, in turn: no network, no waiting, reproducible."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from nodes import exits
from nodes.roles.peer import PeerNode
from nodes.roles.run import IDENTITY_FILE, found_run
from nodes.stop import StopRequest
from swarm.config import NodeConfig, load_config
from swarm.environments.verification.inline import InlineVerifier
from swarm.errors import ConfigError, Interrupted
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.net.records.wire import Limits
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE


def simulate_in_memory(
    file: Path, out: Path, num_peers: int, first_seed: int, control: Path | None, supervised: bool
) -> int:
    """Run `num_peers` peers round by round, and one alone if `control` configures it. Returns the exit code."""
    stop = StopRequest(supervised)
    folders = [out / f"peer-{k + 1}" for k in range(num_peers)]
    turns = Turns(folders)
    nodes = _swarm(file, folders, first_seed, stop, turns)
    if control is not None:
        nodes += _swarm(control, [out / control.stem], first_seed, stop, turns)
    try:
        for node in nodes:
            node.begin()
        while not stop() and not all(node.done for node in nodes):
            for node in nodes:
                if not node.done:
                    node.step()
            turns.taken += 1
    except Interrupted:
        pass  # `stop` says so too
    for node in nodes:
        node.end("done" if node.done else "interrupted")
    return exits.INTERRUPTED if stop() else 0


class Turns:
    """The nodes' clock: each turn takes a second, so that no rate or age depends on how fast the machine is."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """From now on, or from where the nodes in these folders were when they ended, if that is later."""
        rounds = [max(PeerHistory.read(folder / METRICS_FILE).rounds, default=0) for folder in folders]
        self._began = int(time.time()) + max(rounds, default=0)
        self.taken = 0

    def __call__(self) -> float:
        """Unix seconds."""
        return float(self._began + self.taken)


def _swarm(
    file: Path, folders: Sequence[Path], first_seed: int, stop: StopRequest, clock: Callable[[], float]
) -> list[PeerNode]:
    """A run and its peers, the first of which founds it."""
    base = load_config(file, None, os.environ).config
    if base.generation.max_staleness:
        raise ConfigError(
            f"generation.max_staleness must be 0 when all peers share one process, got "
            f"{base.generation.max_staleness}: they take turns"
        )
    verifier = InlineVerifier(base.tasks)
    hub = MemoryHub()
    nodes: list[PeerNode] = []
    sealed: bytes | None = None
    for k, folder in enumerate(folders):
        config = _for_peer(base, folder, first_seed + k)
        identity = Identity.load_or_create(config.out / IDENTITY_FILE)
        sealed = sealed or found_run(config, identity)
        limits = Limits(config.network.max_record_bytes, config.network.max_completion_chars)
        transport = MemoryTransport(hub, identity.peer_id, sealed, limits=limits, clock=clock)
        transport.start()
        nodes.append(PeerNode(config, identity, transport, verifier, stop, clock=clock))
    return nodes


def _for_peer(base: NodeConfig, out: Path, seed: int) -> NodeConfig:
    out.mkdir(parents=True, exist_ok=True)
    return base.model_copy(update={"name": out.name, "out": out, "seed": seed})
