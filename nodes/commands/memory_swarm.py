"""All peers of a simulation in one process, in turn: no network, no waiting, reproducible."""

from __future__ import annotations

import os
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


def simulate_in_memory(file: Path, out: Path, num_peers: int, first_seed: int, supervised: bool) -> int:
    """Run `num_peers` peers round by round. Returns the exit code."""
    stop = StopRequest(supervised)
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
    for k in range(num_peers):
        config = _for_peer(base, out / f"peer-{k + 1}", first_seed + k)
        identity = Identity.load_or_create(config.out / IDENTITY_FILE)
        sealed = sealed or found_run(config, identity)
        limits = Limits(config.network.max_record_bytes, config.network.max_completion_chars)
        transport = MemoryTransport(hub, identity.peer_id, sealed, limits=limits)
        transport.start()
        nodes.append(PeerNode(config, identity, transport, verifier, stop))
    try:
        for node in nodes:
            node.begin()
        while not stop() and not all(node.done for node in nodes):
            for node in nodes:
                if not node.done:
                    node.step()
    except Interrupted:
        pass  # `stop` is set as well
    for node in nodes:
        node.end("done" if node.done else "interrupted")
    return exits.INTERRUPTED if stop() else 0


def _for_peer(base: NodeConfig, out: Path, seed: int) -> NodeConfig:
    out.mkdir(parents=True, exist_ok=True)
    return base.model_copy(update={"name": out.name, "out": out, "seed": seed})
