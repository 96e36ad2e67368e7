"""How a learner's snapshots reach those who follow it: the one place that decides it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from swarm.config import NodeConfig
from swarm.net.records.identity import Identity
from swarm.net.snapshots.relay import SnapshotRelay
from swarm.protocols import Transport

FOLDER = "snapshots"


@contextmanager
def open_relay(
    transport: Transport, identity: Identity, learner: str, config: NodeConfig, *, max_bytes: float = math.inf
) -> Iterator[SnapshotRelay]:
    """Publish this node's own snapshots, or fetch those of the peer `learner` and hand them on.

    Larger ones than `max_bytes` are refused before anything of them is fetched.
    Raises `SnapshotError` when the run is not known or they cannot be kept.
    """
    relay = SnapshotRelay(transport, identity, learner, config.out / FOLDER, config.network, max_bytes=max_bytes)
    relay.start()
    try:
        yield relay
    finally:
        relay.close()
