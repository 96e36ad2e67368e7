"""Snapshots between nodes with real daemons."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from swarm.extras.learner.snapshots.subscribe import Subscriber
from swarm.net.config import SnapshotSettings
from swarm.net.membership.transport import MemberTransport
from tests.extras.learner.snapshot_files import BytesPublisher, newest
from tests.net.records import IDENTITIES, fast_settings, until

pytestmark = [pytest.mark.network, pytest.mark.slow]
RATE = 2**20


class Swarm(NamedTuple):
    """A learner, the workers that have their slots in its plan, and the nodes of all, the learner's first."""

    learner: BytesPublisher
    workers: list[Subscriber]
    nodes: list[MemberTransport]


@contextmanager
def swarm(
    start: Callable[..., MemberTransport], folder: Path, num_workers: int, bytes_per_s: int | None
) -> Iterator[Swarm]:
    limits = {"upload_bytes_per_s": bytes_per_s, "download_bytes_per_s": bytes_per_s}
    founder = start("founder", **limits)
    nodes = [founder, *(start(f"worker-{i}", founder.multiaddrs(), **limits) for i in range(num_workers))]
    settings = fast_settings().model_copy(update={**limits, "snapshots": SnapshotSettings(poll_s=0.5)})
    for node in nodes:
        until(node.manifest, "the run is known")
    learner = BytesPublisher(founder, IDENTITIES[founder.peer_id], folder / "learner", settings)
    workers = [Subscriber(node, founder.peer_id, folder / node.peer_id, settings) for node in nodes[1:]]
    for each in (learner, *workers):
        each.start()
    try:
        until(lambda: len(learner._placement.plan.slots) == len(nodes), "all have their slots")
        yield Swarm(learner, workers, nodes)
    finally:
        for each in (learner, *workers):
            each.close()


def test_a_snapshot_goes_down_a_chain_one_of_which_leaves(
    start: Callable[..., MemberTransport], tmp_path: Path
) -> None:
    with swarm(start, tmp_path, num_workers=3, bytes_per_s=RATE) as (learner, workers, nodes):
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
                assert until(lambda worker=worker: newest(worker), "it arrives") == (1, snapshot)
        received = [worker.counters()["chunks_received"] for peer_id, worker in by_peer.items() if peer_id != gone]
        assert received == [96, 96], "nothing was sent twice"


def test_without_rate_limits_chunks_go_over_direct_links_and_past_closed_ports(
    start: Callable[..., MemberTransport], tmp_path: Path
) -> None:
    with swarm(start, tmp_path, num_workers=2, bytes_per_s=None) as (learner, workers, nodes):
        founder = nodes[0]
        until(lambda: all(founder.observed(node.peer_id) for node in nodes[1:]), "connections are seen")
        until(lambda: all(node.observed(founder.peer_id) for node in nodes[1:]), "from both ends")
        first = random.Random(1).randbytes(3 * RATE)
        learner.publish(1, first)
        for worker in workers:
            assert until(lambda worker=worker: newest(worker), "it arrives") == (1, first)
        givers = (learner, *workers)
        assert sum(each.counters().get("direct_links", 0) for each in givers) >= 1
        for each in givers:  # as a firewall does to a new port
            assert each._serving._direct is not None
            each._serving._direct.close()
        second = random.Random(2).randbytes(3 * RATE)
        learner.publish(2, second)
        for worker in workers:
            assert until(lambda worker=worker: newest(worker), "it arrives by the network") == (2, second)
