"""Opens the transport of snapshots between a learner and its workers; the only place that chooses it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from swarm.config import NodeConfig
from swarm.net.records.identity import Identity
from swarm.net.roster import Progress, write_progress
from swarm.net.snapshots.publish import Publisher
from swarm.net.snapshots.subscribe import Subscriber
from swarm.protocols import Transport

FOLDER = "snapshots"
TELL_EVERY_S = 0.5


@contextmanager
def open_publisher(transport: Transport, identity: Identity, config: NodeConfig) -> Iterator[Publisher]:
    """Publish this node's own snapshots. Raises `SnapshotError` when the run is unknown or they cannot be stored."""
    publisher = Publisher(transport, identity, config.out / FOLDER, config.network)
    publisher.start()
    try:
        with _told(config.out, publisher.progress):
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
        with _told(config.out, subscriber.progress):
            yield subscriber
    finally:
        subscriber.close()


@contextmanager
def _told(out: Path, progress: Callable[[], Progress | None]) -> Iterator[None]:
    """Write how far the newest snapshot is whenever that changes, for the page: it spreads while the node does other
    things."""
    ended = threading.Event()

    def tell() -> None:
        told = None
        while not ended.wait(TELL_EVERY_S):
            if (now := progress()) is not None and now != told:
                with suppress(OSError):  # the node itself says when a disk is full
                    write_progress(out, now)
                told = now

    thread = threading.Thread(target=tell, name="snapshot progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
