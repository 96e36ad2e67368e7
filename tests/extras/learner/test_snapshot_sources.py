"""Which peer gives the next chunks of a part."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from swarm.extras.learner.snapshots.fetching import (
    MAX_POOR_TURNS,
    STUCK_AFTER_STALLS,
    Downloads,
    Fetching,
    Pace,
    Source,
    Sources,
)
from swarm.extras.learner.snapshots.messages import StatusReply, StatusRequest
from swarm.extras.learner.snapshots.plan import Slot
from swarm.extras.learner.snapshots.store import SnapshotStore, describe
from swarm.net.bandwidth import MIN_RATE_BYTES_PER_S, LinkLimit
from swarm.net.guard import Counters
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.net.records.wire import MIN_SNAPSHOT_CHUNK_BYTES, make_run_id, seal_snapshot
from swarm.net.services.requests import ASK_PROTOCOL
from tests.extras.learner.snapshot_files import held
from tests.net.records import sealed_manifest

CHUNK = MIN_SNAPSHOT_CHUNK_BYTES
LEARNER = Identity.generate()
VERSION = 7
NUM_CHUNKS, NUM_HELD = 40, 10


class Peers:
    """One node that holds ten of forty chunks, and others that hold as many as they are told to."""

    def __init__(self, folder: Path) -> None:
        self.hub = MemoryHub()
        self.node = self._enter("node")
        self.askers = ThreadPoolExecutor(8)
        content = bytes(NUM_CHUNKS * CHUNK)
        manifest, _ = describe(
            make_run_id("demo", LEARNER.peer_id), LEARNER.peer_id, VERSION, held(content), None, CHUNK
        )
        self.stored = SnapshotStore(folder, 2).begin(seal_snapshot(LEARNER, manifest), manifest)
        for _ in range(NUM_HELD):
            self.stored.whole.add(content[:CHUNK])

    def hold(self, peer: str, num_held: int, num_free: int = 1) -> None:
        def answer(remote: str, request: bytes) -> bytes:
            assert msgspec.msgpack.decode(request, type=StatusRequest).version == VERSION
            return msgspec.msgpack.encode(StatusReply(b"", num_held, 0, num_free))

        self._enter(peer).serve(ASK_PROTOCOL, answer)

    def sources(self, *planned: str) -> Sources:
        downloads = Downloads(
            transport=self.node,
            stall_s=16.0,  # all answer at once; nothing is to depend on when
            direct=None,
            bytes_per_s=None,
            bucket=LinkLimit(None),
            askers=self.askers,
            counters=Counters(),
            complaints=deque(),
            closing=threading.Event(),
        )
        # Sixteen seconds of this rate are four chunks: that is well ahead.
        return Sources(downloads, self.stored, "whole", Slot(planned, 1, 4 * CHUNK / 16.0))

    def _enter(self, peer_id: str) -> MemoryTransport:
        transport = MemoryTransport(self.hub, peer_id, sealed_manifest(LEARNER))
        transport.start()
        return transport


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    peers = Peers(tmp_path)
    yield peers
    peers.askers.shutdown()


def test_each_field_decides_between_sources_that_are_equal_in_those_before_it() -> None:
    source = Source("b", is_kept=False, num_poor_turns=1, num_free=2, distance=1, num_held=20)
    in_order = [
        replace(source, is_kept=True, num_poor_turns=3),
        replace(source, num_poor_turns=0, num_free=0),
        replace(source, distance=0, num_held=11),
        replace(source, num_held=21),
        replace(source, peer_id="a"),
        source,
        replace(source, num_free=0, distance=0, num_held=40),
    ]
    assert sorted(reversed(in_order), key=lambda each: each.rank) == in_order
    assert replace(source, num_free=5).rank == source.rank, "one free slot is as good as five"


def test_what_may_be_expected_follows_from_the_promised_rate() -> None:
    # 4 MiB/s: half a second brings 64 chunks of 32 KiB; four pieces of 32 KiB take 1/32 s.
    assert Pace.of(Slot((), 0, 4 * 2.0**20), None, 2**15, 0.5) == Pace(4 * 2.0**20, silence_s=0.5, lead=64)
    # Nothing promised: 1/4 MiB/s, at which four pieces take half a second.
    at_least = Pace(MIN_RATE_BYTES_PER_S, silence_s=0.5, lead=2)
    assert Pace.of(Slot((), 0, None), None, 2**15, 0.1) == at_least
    # No source can send more than this node takes.
    assert Pace.of(Slot((), 0, 4 * 2.0**20), MIN_RATE_BYTES_PER_S, 2**15, 0.1) == at_least


def test_the_nearest_planned_source_with_a_free_place_comes_after_one_that_is_gone(peers: Peers) -> None:
    peers.hold("full", 40, num_free=0)
    peers.hold("near", 11)
    peers.hold("far", 40)
    peers.hold("behind", NUM_HELD)
    sources = peers.sources("gone", "full", "near", "far")
    assert sources.planned == "gone" and sources.after("gone") == "near"
    sources.sent_corrupt("near")
    assert sources.after("gone") == "far"
    sources.sent_corrupt("far")
    assert sources.after("gone") == "full"
    sources.sent_corrupt("full")
    assert sources.after("gone") is None, "the other holds nothing that is missing here"


def test_peers_that_take_nobody_on_are_no_sources(peers: Peers) -> None:
    peers.hold("overrun", 40, num_free=-1)
    assert peers.sources("gone").after("gone") is None


def test_a_source_that_still_answers_is_kept_until_it_is_to_blame(peers: Peers) -> None:
    peers.hold("source", NUM_HELD + 3)
    peers.hold("other", 40)
    sources = peers.sources("source", "other")
    for _ in range(MAX_POOR_TURNS):
        sources.ended("source", 0, too_little=True)
        assert sources.after("source") == "source", "it holds no more itself"
    sources.ended("source", 0, too_little=True)
    assert sources.after("source") == "other", "it has said so too often"
    sources.ended("source", 3, too_little=False)
    assert sources.after("source") == "source", "it gives again"


def test_a_source_that_has_more_and_gives_too_little_is_left_at_once(peers: Peers) -> None:
    peers.hold("source", NUM_HELD + 4)
    peers.hold("other", NUM_HELD + 1)
    sources = peers.sources("source")
    sources.ended("source", 1, too_little=True)
    assert sources.after("source") == "other"


def test_only_a_peer_well_ahead_with_a_free_place_is_better_than_a_slow_source(peers: Peers) -> None:
    peers.hold("slow", NUM_HELD + 4)
    peers.hold("close", NUM_HELD + 3)
    peers.hold("full", 40, num_free=0)
    sources = peers.sources("slow")
    assert sources.better_than("slow") is None
    peers.hold("better", NUM_HELD + 4)
    assert sources.better_than("slow") == "better"


def test_nothing_is_better_than_a_source_that_waits_itself(peers: Peers) -> None:
    peers.hold("waiting", NUM_HELD + 3)
    peers.hold("ahead", 40)
    sources = peers.sources("ahead", "waiting")
    assert sources.better_than("waiting") is None


def test_a_source_that_keeps_back_the_rest_of_a_chunk_is_left_whatever_it_says(peers: Peers) -> None:
    peers.hold("dripping", NUM_HELD)
    peers.hold("full", NUM_HELD + 1, num_free=0)
    peers.hold("overrun", 40, num_free=-1)
    sources = peers.sources("dripping")
    assert sources.better_than("dripping") is None, "it says that it waits itself"
    assert sources.instead_of("dripping") == "full"
    assert sources.failed == ("dripping",), "nothing has come from anybody, and yet it is reported"
    sources.ended("dripping", 0, too_little=True)
    assert sources.after("dripping") == "full", "it is not kept"


def test_a_source_that_gave_nothing_in_several_turns_has_failed_even_if_nobody_gave_anything(peers: Peers) -> None:
    sources = peers.sources("planned", "other")
    for _ in range(MAX_POOR_TURNS):
        sources.ended("planned", 0, too_little=True)
    assert sources.failed == ()
    sources.ended("planned", 0, too_little=True)
    assert sources.failed == ("planned",)
    sources.ended("planned", 1, too_little=True)
    assert sources.failed == (), "it gives, if slowly"


def test_a_version_whose_chunk_is_on_its_way_is_not_gone(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = peers.sources("source")
    fetching = Fetching(sources._downloads, peers.stored, "whole", Slot(("source",), 1, None), lambda fetching: True)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert not fetching.stuck
    now += STUCK_AFTER_STALLS * sources.pace.silence_s + 1
    assert fetching.stuck
    fetching._take_in(b"x")
    assert not fetching.stuck
    for _ in range(100):
        now += sources.pace.silence_s
        fetching._take_in(b"x")
    assert fetching.stuck, "bytes come, but no chunk"


def test_the_planned_source_has_failed_when_nearly_everything_came_from_others(peers: Peers) -> None:
    sources = peers.sources("planned", "other")
    assert sources.failed == ()
    sources.ended("planned", 1, too_little=True)
    sources.ended("other", 7, too_little=False)
    assert sources.failed == (), "an eighth came from it"
    sources.ended("other", 1, too_little=False)
    assert sources.failed == ("planned",)
    sources.sent_corrupt("planned")
    assert sources.planned is None
