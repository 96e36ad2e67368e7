"""Snapshots between nodes with real daemons."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from swarm.net.backends import NetworkTransport
from swarm.net.snapshots.config import SnapshotSettings
from swarm.net.snapshots.publish import Publisher
from swarm.net.snapshots.subscribe import Subscriber

from .records import IDENTITIES, fast_settings, until

pytestmark = [pytest.mark.network, pytest.mark.slow]
RATE = 2**20


def test_a_snapshot_goes_down_a_chain_one_of_which_leaves(
    start: Callable[..., NetworkTransport], tmp_path: Path
) -> None:
    limits = {"upload_bytes_per_s": RATE, "download_bytes_per_s": RATE}
    founder = start("founder", **limits)
    nodes = [founder, *(start(f"worker-{i}", founder.multiaddrs(), **limits) for i in range(3))]
    settings = fast_settings().model_copy(update={**limits, "snapshots": SnapshotSettings(poll_s=0.5)})
    for node in nodes:
        until(node.manifest, "the run is known")
    learner = Publisher(founder, IDENTITIES[founder.peer_id], tmp_path / "learner", settings)
    workers = [Subscriber(node, founder.peer_id, tmp_path / node.peer_id, settings) for node in nodes[1:]]
    for each in (learner, *workers):
        each.start()
    try:
        until(lambda: len(learner._placement.plan.places) == 4, "all have their places")
        snapshot = random.Random(0).randbytes(3 * RATE)
        learner.publish(1, snapshot)
        by_peer = {worker._transport.peer_id: worker for worker in workers}

        def head() -> str | None:
            """The one that the learner feeds, once it feeds another."""
            progress = learner.progress()
            fed = progress.feeds if progress else ()
            feeds = by_peer[fed[0]].progress() if fed else None
            return fed[0] if feeds and feeds.feeds and feeds.fraction > 0.2 else None

        gone = until(head, "the chain has begun")
        next(node for node in nodes if node.peer_id == gone).close()
        for peer_id, worker in by_peer.items():
            if peer_id != gone:
                assert until(worker.newest, "it arrives") == (1, snapshot)
        received = [worker.counters()["chunks_received"] for peer_id, worker in by_peer.items() if peer_id != gone]
        assert received == [96, 96], "nothing was sent twice"
    finally:
        for each in (learner, *workers):
            each.close()
