"""Opens the transport of snapshots between a learner and its workers; the only place that chooses it."""

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
    """Publish this node's own snapshots. Raises `SnapshotError` when the run is unknown or they cannot be stored."""
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
    """Fetch the snapshots of the peer `learner`, and serve them to others.

    Snapshots larger than `max_bytes` are refused before the download. Raises `SnapshotError` when the run is unknown or
    they cannot be stored.
    """
    subscriber = Subscriber(transport, learner, config.out / FOLDER, config.network, max_bytes=max_bytes)
    subscriber.start()
    try:
        yield subscriber
    finally:
        subscriber.close()
