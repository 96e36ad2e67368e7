"""How a learner's snapshots reach those who follow it: the one place that decides it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from swarm.config import NodeConfig
from swarm.net.records.identity import Identity
from swarm.net.snapshots.publish import Publisher
from swarm.net.snapshots.subscribe import Subscriber
from swarm.protocols import Transport

FOLDER = "snapshots"


@contextmanager
def open_publisher(transport: Transport, identity: Identity, config: NodeConfig) -> Iterator[Publisher]:
    """Publish this node's own snapshots. Raises `SnapshotError` when the run is not known or they cannot be kept."""
    publisher = Publisher(transport, identity, config.out / FOLDER, config.network)
    publisher.start()
    try:
        yield publisher
    finally:
        publisher.close()


@contextmanager
def open_subscriber(
    transport: Transport, learner: str, config: NodeConfig, *, max_bytes: float
) -> Iterator[Subscriber]:
    """Fetch the snapshots of the peer `learner`, and hand them on.

    Larger ones than `max_bytes` are refused before anything of them is fetched.
    Raises `SnapshotError` when the run is not known or they cannot be kept.
    """
    subscriber = Subscriber(transport, learner, config.out / FOLDER, config.network, max_bytes=max_bytes)
    subscriber.start()
    try:
        yield subscriber
    finally:
        subscriber.close()
