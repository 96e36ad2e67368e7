"""Snapshots from a learner to its workers, over the transport without a network."""

from __future__ import annotations

import errno
import math
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from swarm.errors import CorruptChunk, PeerUnreachable, Refusal, SnapshotError
from swarm.extras.learner.protocols import SnapshotFeed
from swarm.extras.learner.snapshots import (
    serving as thread_module,
    store as chunks_module,
    store as store_module,
    subscribe as subscribe_module,
)
from swarm.extras.learner.snapshots.messages import (
    CHUNKS_PROTOCOL,
    ChunksRequest,
    SnapshotAnnouncement,
    StatusReply,
    StatusRequest,
)
from swarm.extras.learner.snapshots.plan import LinkLimits, Slot
from swarm.extras.learner.snapshots.publish import NUM_ANNOUNCERS, UNHEARD_S, Publisher
from swarm.extras.learner.snapshots.serving import MAX_FAILURES, MAX_REPEATS, Uploads
from swarm.extras.learner.snapshots.store import Part, SnapshotStore, Stored, check_size, chunk_bytes_for, cut, describe
from swarm.extras.learner.snapshots.subscribe import Subscriber
from swarm.files import RandomAccessFile
from swarm.net.config import NetworkSettings, SnapshotSettings
from swarm.net.guard import Counters
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.net.records.wire import MIN_SNAPSHOT_CHUNK_BYTES, make_run_id, open_snapshot, seal, seal_snapshot
from swarm.net.services.requests import ANNOUNCE_PROTOCOL, ASK_PROTOCOL
from swarm.protocols import StreamHandler
from swarm.types import ChunkList
from tests.extras.learner.snapshot_files import BytesPublisher, content_of, held, newest
from tests.net.records import sealed_manifest, until

CHUNK = MIN_SNAPSHOT_CHUNK_BYTES
NUM_CHUNKS = 41
LEARNER = Identity.generate()
RUN_ID = make_run_id("demo", LEARNER.peer_id)
FAST = SnapshotSettings(chunk_bytes=CHUNK, stall_s=0.2, poll_s=0.3)


class Swarm:
    """A learner and workers in one process."""

    def __init__(self, folder: Path) -> None:
        self.hub = MemoryHub()
        self.folder = folder
        self.settings = FAST
        self.nodes: list[Publisher | Subscriber] = []

    def learner(self, transport: type[MemoryTransport] = MemoryTransport, **network: object) -> BytesPublisher:
        node = self._enter(LEARNER, transport)
        publisher = BytesPublisher(node, LEARNER, self.folder / "learner", self._network(**network))
        publisher.start()
        self.nodes.append(publisher)
        return publisher

    def worker(
        self,
        name: str,
        transport: type[MemoryTransport] = MemoryTransport,
        max_bytes: float = math.inf,
        **network: object,
    ) -> Subscriber:
        node = self._enter(Identity.generate(), transport)
        settings = self._network(**network)
        subscriber = Subscriber(node, LEARNER.peer_id, self.folder / name, settings, max_bytes=max_bytes)
        subscriber.start()
        self.nodes.append(subscriber)
        return subscriber

    def kill(self, node: Publisher | Subscriber) -> None:
        self.nodes.remove(node)
        node._transport.close()
        node.close()

    def _enter(self, identity: Identity, transport: type[MemoryTransport]) -> MemoryTransport:
        node = transport(self.hub, identity.peer_id, sealed_manifest(LEARNER))
        node.start()
        return node

    def _network(self, **network: object) -> NetworkSettings:
        return NetworkSettings(snapshots=self.settings).model_copy(update=network)


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    swarm = Swarm(tmp_path)
    yield swarm
    for node in swarm.nodes:
        node.close()


def snapshot(seed: int, num_bytes: int = (NUM_CHUNKS - 1) * CHUNK + 7) -> bytes:
    return random.Random(seed).randbytes(num_bytes)


def step(before: bytes) -> bytes:
    """A snapshot that differs in little."""
    after = bytearray(before)
    for at in range(0, len(after), 9_973):
        after[at] ^= 1
    return bytes(after)


def raises(error: Exception) -> Any:
    raise error


def arrives(feed: SnapshotFeed, version: int, content: bytes) -> None:
    assert until(lambda: newest(feed), f"version {version} arrives") == (version, content)


def test_every_worker_gets_each_snapshot_once_and_whole(swarm: Swarm) -> None:
    learner = swarm.learner()
    workers = [swarm.worker(f"worker-{i}") for i in range(5)]
    assert all(worker.newest() is None and worker.announced() is None for worker in workers)
    content = snapshot(0)
    for version in (3, 4):
        learner.publish(version, content)
        for worker in workers:
            arrives(worker, version, content)
            assert worker.newest() is None and worker.announced() == version
            progress = worker.progress()
            assert progress is not None and (progress.version, progress.fraction) == (version, 1.0)
        content = step(content)
    with pytest.raises(SnapshotError, match="must be above"):
        learner.publish(4, content)
    # Most of it did not come from the learner: it feeds two at a time.
    given = [node.counters().get("chunks_given", 0) for node in swarm.nodes]
    assert sum(given[1:]) > 0


def test_a_small_step_travels_as_its_change(swarm: Swarm) -> None:
    learner, worker = swarm.learner(), swarm.worker("worker")
    learner.publish(1, snapshot(0))
    arrives(worker, 1, snapshot(0))
    before = worker.counters()["chunks_received"]
    learner.publish(2, step(snapshot(0)))
    arrives(worker, 2, step(snapshot(0)))
    assert worker.counters()["chunks_received"] - before < 5
    late = swarm.worker("late")
    arrives(late, 2, step(snapshot(0)))
    assert late.counters()["chunks_received"] == NUM_CHUNKS


def test_a_change_that_is_not_for_what_is_here_is_made_up_for_by_the_whole(swarm: Swarm) -> None:
    lonely = SnapshotStore(swarm.folder / "worker", 2)
    manifest, _ = describe(RUN_ID, LEARNER.peer_id, 1, held(snapshot(99)), None, CHUNK)
    lonely.begin(seal_snapshot(LEARNER, manifest), manifest).whole.adopt(held(snapshot(99), swarm.folder))
    learner = swarm.learner()
    learner.publish(1, snapshot(0))
    until(lambda: learner.counters().get("published") == 1, "the first is published")
    learner.publish(2, step(snapshot(0)))
    until(lambda: learner.announced() == 2, "both are published")
    worker = swarm.worker("worker")
    # What it had is handed out at once.
    until(lambda: newest(worker) == (2, step(snapshot(0))), "it has taken the second")
    assert worker.counters()["useless_changes"] == 1


def test_late_joiners_find_holders_when_the_learner_is_gone(swarm: Swarm) -> None:
    learner, worker = swarm.learner(), swarm.worker("worker")
    learner.publish(1, snapshot(0))
    arrives(worker, 1, snapshot(0))
    swarm.kill(learner)
    arrives(swarm.worker("late"), 1, snapshot(0))


def test_a_learner_that_restarts_goes_on_above_what_it_published(swarm: Swarm) -> None:
    learner, worker = swarm.learner(), swarm.worker("worker")
    learner.publish(5, snapshot(0))
    arrives(worker, 5, snapshot(0))
    swarm.kill(learner)
    learner = swarm.learner()
    assert learner.announced() == 5
    with pytest.raises(SnapshotError, match="must be above"):
        learner.publish(5, snapshot(1))
    learner.publish(6, step(snapshot(0)))
    arrives(worker, 6, step(snapshot(0)))
    assert worker.counters()["chunks_received"] < NUM_CHUNKS + 5, "the change is to what it published before"


def test_of_snapshots_that_wait_only_the_newest_is_published(swarm: Swarm) -> None:
    node = swarm._enter(LEARNER, MemoryTransport)
    learner = BytesPublisher(node, LEARNER, swarm.folder / "learner", swarm._network())
    for version in range(4):
        learner.publish(version, snapshot(version))
    learner.start()
    swarm.nodes.append(learner)
    worker = swarm.worker("worker")
    arrives(worker, 3, snapshot(3))
    until(lambda: learner.counters().get("published"), "it is written")
    assert learner.counters()["superseded"] == 3 and learner.counters()["published"] == 1
    learner.publish(4, step(snapshot(3)))
    arrives(worker, 4, step(snapshot(3)))
    assert worker.counters()["chunks_received"] < NUM_CHUNKS + 5, "the change is to what was published"
    until(lambda: learner.counters()["published"] == 2, "it is stored")
    assert {path.name for path in (swarm.folder / "learner").iterdir()} <= {"3", "4"}, "no packed file stays"


def test_what_a_killed_learner_was_packing_is_deleted(swarm: Swarm) -> None:
    leftover = held(snapshot(0), swarm.folder / "learner")
    swarm.learner()
    assert not leftover.path.exists()


def test_a_full_disk_keeps_what_was_packed_until_there_is_room(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    learner, worker = swarm.learner(), swarm.worker("worker")
    learner.publish(1, snapshot(0))
    arrives(worker, 1, snapshot(0))
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "delta", lambda new, parent: raises(full))
        learner.publish(2, step(snapshot(0)))
        until(lambda: learner.counters().get("disk_errors", 0) > 1, "it tries again")
    arrives(worker, 2, step(snapshot(0)))
    assert "snapshots cannot be written: [Errno 28] No space left on device" in caplog.text


def test_what_never_fitted_on_a_full_disk_does_not_stay_there(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, worker = swarm.learner(), swarm.worker("worker")
    learner.publish(1, snapshot(0))
    arrives(worker, 1, snapshot(0))
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patch:
        patch.setattr(SnapshotStore, "begin", lambda *parts: raises(full))
        learner.publish(2, step(snapshot(0)))
        until(lambda: learner.counters().get("disk_errors", 0) > 1, "it tries again")
        learner.publish(3, snapshot(1))
        until(lambda: learner.counters().get("disk_errors", 0) > 3, "it tries the next one")
        learner.publish(4, snapshot(2))
    arrives(worker, 4, snapshot(2))
    until(lambda: learner.counters()["published"] == 2, "it is stored")
    assert {path.name for path in (swarm.folder / "learner").iterdir()} <= {"1", "4"}, "no packed file stays"


def test_a_worker_without_room_for_the_planes_of_a_delta_takes_the_whole(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, worker = swarm.learner(), swarm.worker("worker")
    learner.publish(1, snapshot(0))
    arrives(worker, 1, snapshot(0))
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(subscribe_module, "apply_delta", lambda *parts: raises(full))
    learner.publish(2, step(snapshot(0)))
    arrives(worker, 2, step(snapshot(0)))
    assert worker.counters()["useless_changes"] == 1


class Unheard(MemoryTransport):
    """Of a learner: announcements to the peers in `silent` are not answered."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.silent: set[str] = set()
        self.announced: Counter[str] = Counter()
        self.gives_up = threading.Event()

    def request(self, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
        if protocol == ANNOUNCE_PROTOCOL:
            self.announced[peer_id] += 1
            if peer_id in self.silent:
                self.gives_up.wait()
                raise PeerUnreachable("no answer")
        return super().request(peer_id, protocol, payload, timeout_s)


@pytest.fixture
def deaf_swarm(swarm: Swarm) -> Iterator[tuple[Swarm, Publisher, Unheard]]:
    """A learner with a slot for each of more silent identities than it announces to at a time."""
    swarm.settings = FAST.model_copy(update={"poll_s": 3.0})  # on a busy machine, too, nobody is forgotten meanwhile
    learner = swarm.learner(Unheard)
    transport = learner._transport
    assert isinstance(transport, Unheard)
    transport.silent = {f"silent-{number}" for number in range(3 * NUM_ANNOUNCERS)}
    all_ask(learner, transport.silent)
    yield swarm, learner, transport
    transport.gives_up.set()


def all_ask(learner: Publisher, workers: Collection[str]) -> None:
    for worker in workers:
        learner.slot_for(worker, StatusRequest(-1, LinkLimits()))


def test_workers_that_do_not_answer_hold_up_neither_snapshots_nor_the_end(
    deaf_swarm: tuple[Swarm, Publisher, Unheard],
) -> None:
    swarm, learner, transport = deaf_swarm
    worker = swarm.worker("worker")
    for version in range(3):
        all_ask(learner, transport.silent)
        learner.publish(version, snapshot(version))
        until(lambda version=version: learner.counters().get("published") == version + 1, "it is published")  # type: ignore[misc]
    arrives(worker, 2, snapshot(2))
    swarm.nodes.remove(learner)
    learner.close()
    assert not learner._thread._thread.is_alive()


def test_a_worker_that_did_not_answer_is_passed_over_for_a_while(
    deaf_swarm: tuple[Swarm, Publisher, Unheard], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, learner, transport = deaf_swarm
    learner.publish(1, snapshot(1))
    until(lambda: transport.announced.total() == NUM_ANNOUNCERS, "as many as possible are announced to")
    first = set(transport.announced)
    learner.publish(2, snapshot(2))
    until(lambda: learner.counters().get("published") == 2, "the second is published")
    assert set(transport.announced) == first, "the rest of the first announcements are dropped"
    transport.gives_up.set()
    num_silent = len(transport.silent)
    until(lambda: learner.counters().get("unheard_announcements") == num_silent, "each was tried")
    assert set(transport.announced.values()) == {1}, "those that had yet to answer were passed over"
    all_ask(learner, transport.silent)
    learner.publish(3, snapshot(3))
    until(lambda: learner.counters().get("published") == 3, "the third is published")
    assert set(transport.announced.values()) == {1}
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + UNHEARD_S)
    all_ask(learner, transport.silent)
    learner.publish(4, snapshot(4))
    until(lambda: set(transport.announced.values()) == {2}, "after a while they are tried again")


def test_an_old_manifest_in_a_strangers_hands_ends_no_learner(swarm: Swarm) -> None:
    """Of an earlier life of its key and run, which it does not remember."""
    learner = swarm.learner()
    stranger = swarm._enter(Identity.generate(), MemoryTransport)

    def replay(version: int) -> None:
        manifest, _ = describe(RUN_ID, LEARNER.peer_id, version, held(snapshot(9)), None, CHUNK)
        message = msgspec.msgpack.encode(SnapshotAnnouncement(seal_snapshot(LEARNER, manifest), Slot((), 0, None)))
        stranger.request(LEARNER.peer_id, ANNOUNCE_PROTOCOL, message, 1.0)

    replay(500)
    learner.publish(1, snapshot(1))
    until(lambda: learner.announced() == 1, "it is published")
    replay(501)
    learner.publish(2, snapshot(2))
    until(lambda: learner.announced() == 2, "it goes on")
    arrives(swarm.worker("worker"), 2, snapshot(2))


class Hooked(MemoryTransport):
    """One that passes the chunks it gives through `hook`."""

    hook: Callable[[Iterator[bytes | None]], Iterator[bytes | None]]

    def serve_stream(self, protocol: str, handler: StreamHandler) -> None:
        if protocol == CHUNKS_PROTOCOL:
            super().serve_stream(protocol, lambda remote, request: self.hook(handler(remote, request)))
        else:
            super().serve_stream(protocol, handler)


class Liar(Hooked):
    """Gives wrong bytes from the tenth chunk on."""

    def hook(self, chunks: Iterator[bytes | None]) -> Iterator[bytes | None]:
        num = 0
        for chunk in chunks:
            num += chunk is not None
            yield bytes(len(chunk)) if chunk is not None and num >= 10 else chunk


class Mute(Hooked):
    """Gives nobody anything after ten chunks, and does not hang up."""

    num = 0

    def hook(self, chunks: Iterator[bytes | None]) -> Iterator[bytes | None]:
        for chunk in chunks:
            self.num += chunk is not None
            if self.num > 10:
                while True:
                    yield None
            yield chunk


class Leaver(Hooked):
    """Is gone after ten chunks."""

    def hook(self, chunks: Iterator[bytes | None]) -> Iterator[bytes | None]:
        num = 0
        for chunk in chunks:
            num += chunk is not None
            if num > 10:
                self.close()
                raise LookupError("gone")
            yield chunk


class Slow(Hooked):
    """Gives a quarter of what it should."""

    def hook(self, chunks: Iterator[bytes | None]) -> Iterator[bytes | None]:
        for chunk in chunks:
            yield chunk
            yield from (None for _ in range(12))


class Drip(Hooked):
    """Says that it holds nothing yet, and gives a byte at a time."""

    def serve_stream(self, protocol: str, handler: StreamHandler) -> None:
        if protocol == ASK_PROTOCOL:
            nothing = msgspec.msgpack.encode(StatusReply(b"", 0, 0, 1))
            super().serve_stream(protocol, lambda remote, request: iter([nothing]))
        else:
            super().serve_stream(protocol, handler)

    def hook(self, chunks: Iterator[bytes | None]) -> Iterator[bytes | None]:
        while True:
            yield from [None] * 4
            yield b"x"


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("bad", [Liar, Mute, Leaver, Slow, Drip])
def test_a_bad_relay_is_routed_around(swarm: Swarm, bad: type[Hooked], num_workers: int) -> None:
    # With these limits the learner feeds one, and everybody the next: one chain.
    limits = {"upload_bytes_per_s": 2**20, "download_bytes_per_s": 2**20}
    learner = swarm.learner(**limits)
    rogue = swarm.worker("rogue", transport=bad, **limits)
    until(lambda: LEARNER.peer_id in rogue._slot.sources and rogue._slot.bytes_per_s, "the rogue has its slot")
    workers = [swarm.worker(f"worker-{i}", **limits) for i in range(num_workers)]
    for worker in workers:
        until(lambda worker=worker: worker._slot.bytes_per_s, "the worker has its slot")  # type: ignore[misc]
    learner.publish(1, snapshot(0))
    for worker in workers:
        arrives(worker, 1, snapshot(0))
    assert any(worker.counters().get("reroutes") for worker in workers)
    if bad is Drip:
        until(lambda: learner.counters().get("reported_sources"), "it is reported")
    complaints = [complaint for worker in workers for complaint in worker.complaints()]
    expected = [(rogue._transport.peer_id, "corrupt_chunk")] if bad is Liar else []
    assert [complaint for complaint in complaints if complaint not in expected] == []
    assert bool(complaints) == (bad is Liar)


class Late(Hooked):
    """Gives nothing at first, for longer than a first contact is waited for."""

    began: float | None = None

    def hook(self, chunks: Iterator[bytes | None]) -> Iterator[bytes | None]:
        self.began = self.began or time.monotonic()
        while time.monotonic() < self.began + 6.0:
            yield None
        yield from chunks


def test_who_waits_in_a_chain_behind_another_stays_there(swarm: Swarm) -> None:
    limits = {"upload_bytes_per_s": 2**20, "download_bytes_per_s": 2**20}
    # Long enough that no answer is too late on a busy machine.
    swarm.settings = FAST.model_copy(update={"stall_s": 2.0})
    learner = swarm.learner(Late, **limits)
    workers = []
    for i in range(4):
        workers.append(swarm.worker(f"worker-{i}", **limits))
        until(lambda: workers[-1]._slot.bytes_per_s, "the worker has its slot")
    learner.publish(1, snapshot(0))
    for worker in workers:
        arrives(worker, 1, snapshot(0))
    assert [worker.counters().get("reroutes", 0) for worker in workers] == [0, 0, 0, 0]


def test_a_torn_download_goes_on_from_what_it_has(swarm: Swarm) -> None:
    learner, worker = swarm.learner(), swarm.worker("worker")
    learner.publish(1, snapshot(0))
    arrives(worker, 1, snapshot(0))
    swarm.kill(worker)
    # What kill -9 may leave: a part of the chunks, the last of them torn, and a draft.
    folder = swarm.folder / "worker" / "1"
    content = (folder / "whole").read_bytes()
    (folder / "whole").write_bytes(content[: 30 * CHUNK + 100])
    (folder / "manifest.partial").write_bytes(b"x")
    (swarm.folder / "worker" / "2").mkdir()
    worker = swarm.worker("worker")
    arrives(worker, 1, snapshot(0))
    assert worker.counters()["chunks_received"] == NUM_CHUNKS - 30
    assert not (swarm.folder / "worker" / "2").exists()
    swarm.kill(worker)
    # A disk that has rotted.
    (folder / "whole").write_bytes(content[: 20 * CHUNK] + b"rot" + content[20 * CHUNK + 3 :])
    worker = swarm.worker("worker")
    arrives(worker, 1, snapshot(0))
    assert worker.counters()["chunks_received"] == NUM_CHUNKS - 20


def test_a_full_disk_stops_neither_the_node_nor_what_it_gives(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, worker = swarm.learner(), swarm.worker("worker")
    learner.publish(1, snapshot(0))
    arrives(worker, 1, snapshot(0))
    real, full = os.pwrite, [True]

    def pwrite(file: int, content: bytes, offset: int) -> int:
        if full and os.readlink(f"/proc/self/fd/{file}").startswith(str(swarm.folder / "worker")):
            raise OSError(28, "No space left on device")
        return real(file, content, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    learner.publish(2, snapshot(1))
    until(lambda: worker.counters().get("disk_errors", 0) > 1, "it tries again")
    arrives(swarm.worker("other"), 2, snapshot(1))
    full.clear()
    arrives(worker, 2, snapshot(1))


def test_old_snapshots_are_removed(swarm: Swarm) -> None:
    learner, worker = swarm.learner(), swarm.worker("worker")
    for version in range(5):
        learner.publish(version, snapshot(version))
        arrives(worker, version, snapshot(version))
    for name in ("learner", "worker"):
        until(lambda name=name: sorted(os.listdir(swarm.folder / name)) == ["3", "4"], "two are left")  # type: ignore[misc]


class Gated(Hooked):
    """Gives nothing before its gate is opened."""

    gate = False

    def hook(self, chunks: Iterator[bytes | None]) -> Iterator[bytes | None]:
        while not self.gate:
            yield None
        yield from chunks


def test_a_snapshot_on_its_way_is_given_up_when_two_behind(swarm: Swarm) -> None:
    learner = swarm.learner(Gated)
    worker = swarm.worker("worker")
    for version in range(3):
        learner.publish(version, snapshot(version))
        until(lambda version=version: worker.announced() == version, "it is announced")  # type: ignore[misc]
        progress = worker.progress()
        assert progress is not None and progress.fraction == 0
    learner._transport.gate = True  # type: ignore[attr-defined]
    arrives(worker, 2, snapshot(2))
    assert worker.newest() is None and worker.counters()["completed"] == 1


def test_a_worker_that_needs_longer_than_two_publications_finishes_one_and_catches_up(swarm: Swarm) -> None:
    # It takes five seconds to a whole. A busy machine may be late by two without breaking the stream.
    swarm.settings = FAST.model_copy(update={"stall_s": 2.0})
    learner, worker = swarm.learner(), swarm.worker("worker", download_bytes_per_s=2**18)
    contents = [snapshot(0)]

    def publish(version: int) -> None:
        contents.append(step(contents[-1]))
        learner.publish(version, contents[version])
        until(lambda: learner.counters().get("published") == version, "it is written")
        until(lambda: worker.announced() == version, "it is announced")

    publish(1)
    until(lambda: worker._fetching, "it has begun")
    publish(2)
    publish(3)
    folder = swarm.folder / "worker"
    until(lambda: os.listdir(folder) == ["3"], "it has begun another, and removed what it had of the first")
    for version in range(4, 8):
        publish(version)
    assert (swarm.folder / "learner" / "3" / "whole").stat().st_size == 0, "its learner does not keep it any longer"
    # Those before it may be replaced by newer ones before they are asked for.
    until(lambda: newest(worker) == (7, contents[7]), "it catches up")
    assert worker.counters()["completed"] == 5, "the third whole, the others by deltas"


def test_a_version_that_nobody_has_any_more_is_not_waited_for(swarm: Swarm) -> None:
    worker = swarm.worker("worker")
    gone, _ = describe(RUN_ID, LEARNER.peer_id, 1, held(snapshot(1)), None, CHUNK)
    worker._on_news(LEARNER.peer_id, seal_snapshot(LEARNER, gone), None)
    until(lambda: worker._fetching, "it looks for the first")
    learner = swarm.learner()
    learner.publish(2, snapshot(2))
    arrives(worker, 2, snapshot(2))
    assert worker.newest() is None


def test_a_chain_of_changes_whose_first_is_gone_is_made_up_for_by_the_whole(swarm: Swarm) -> None:
    """Three small changes take fewer bytes than the whole, but nobody has the first."""
    learner, worker = swarm.learner(Gated), swarm.worker("worker")
    gate = learner._transport
    gate.gate = True  # type: ignore[attr-defined]
    contents = [snapshot(0)]
    learner.publish(0, contents[0])
    arrives(worker, 0, contents[0])
    gate.gate = False  # type: ignore[attr-defined]
    for version in (1, 2, 3):
        contents.append(step(contents[-1]))
        learner.publish(version, contents[-1])
        until(lambda version=version: worker.announced() == version, "it is announced")  # type: ignore[misc]
    until(lambda: learner.counters().get("published") == 4, "the last is written")
    learner._serving.store.remove(1)
    gate.gate = True  # type: ignore[attr-defined]
    arrives(worker, 3, contents[3])


def test_only_what_the_learner_signed_is_believed(swarm: Swarm) -> None:
    worker = swarm.worker("worker")
    stranger = Identity.generate()
    node = MemoryTransport(swarm.hub, stranger.peer_id, sealed_manifest(LEARNER))
    node.start()
    manifest, _ = describe(RUN_ID, LEARNER.peer_id, 1, held(snapshot(0)), None, CHUNK)
    foreign = [
        b"noise",
        seal_snapshot(stranger, manifest),
        seal_snapshot(stranger, replace(manifest, learner=stranger.peer_id)),
        seal_snapshot(LEARNER, replace(manifest, run_id=make_run_id("other", LEARNER.peer_id))),
        seal_snapshot(LEARNER, manifest)[:-3] + b"xyz",
        seal(LEARNER, RUN_ID, "group", manifest),
    ]
    slot = Slot((stranger.peer_id,), 99, None)
    for sealed in foreign:
        message = msgspec.msgpack.encode(SnapshotAnnouncement(sealed, slot))
        with pytest.raises(PeerUnreachable):
            node.request(worker._transport.peer_id, ANNOUNCE_PROTOCOL, message, 1.0)
    assert worker.announced() is None and worker.counters()["refused_manifests"] == len(foreign)
    assert worker._serving.uploads.num_free != 99
    # A good one may come from anybody; where to get it only the learner says.
    message = msgspec.msgpack.encode(SnapshotAnnouncement(seal_snapshot(LEARNER, manifest), slot))
    node.request(worker._transport.peer_id, ANNOUNCE_PROTOCOL, message, 1.0)
    assert worker.announced() == 1 and worker._slot.sources == (LEARNER.peer_id,)


@pytest.mark.parametrize(
    "change",
    [
        {"version": -1},
        {"version": 2**63},
        {"digest": b"short"},
        {"parent": 1},
        {"parent": 7, "change": cut(held(b"x"), CHUNK)[0]},
        {"whole": ChunkList(0, CHUNK, ())},
        {"whole": ChunkList(2**62, 2**22, ())},
        {"whole": ChunkList(10, 0, ())},
        {"whole": ChunkList(10, CHUNK, (bytes(16), bytes(16)))},
        {"whole": ChunkList(10, CHUNK, (b"short",))},
    ],
)
def test_manifests_against_the_limits_are_refused(change: dict[str, object]) -> None:
    manifest, _ = describe(RUN_ID, LEARNER.peer_id, 7, held(snapshot(0)), None, CHUNK)
    assert open_snapshot(seal_snapshot(LEARNER, manifest), RUN_ID, LEARNER.peer_id) == manifest
    try:
        sealed = seal_snapshot(LEARNER, replace(manifest, **change))
    except OverflowError:
        return
    with pytest.raises(Refusal, match="limits|malformed"):
        open_snapshot(sealed, RUN_ID, LEARNER.peer_id)


def test_no_more_are_fed_than_planned_and_one(swarm: Swarm) -> None:
    learner = swarm.learner()
    learner.publish(1, snapshot(0))
    until(lambda: learner.announced() == 1, "it is published")
    want = msgspec.msgpack.encode(ChunksRequest(1, "whole", 0))
    slots = learner._serving.uploads.num_free
    streams = [learner._serving.uploads.send_chunks(f"peer-{i}", want) for i in range(slots + 1)]
    assert [next(stream) for stream in streams] == [snapshot(0)[:CHUNK]] * (slots + 1)
    with pytest.raises(LookupError, match="all upload slots are taken"):
        next(learner._serving.uploads.send_chunks("one too many", want))
    # The same peer again takes its own slot, and who hangs up gives it back.
    assert next(learner._serving.uploads.send_chunks("peer-0", want))
    streams.pop().close()
    assert next(learner._serving.uploads.send_chunks("another", want))
    for bad in (ChunksRequest(1, "whole", 1_000), ChunksRequest(1, "whole", -1), ChunksRequest(1, "change", 0)):
        with pytest.raises((LookupError, msgspec.ValidationError)):
            next(learner._serving.uploads.send_chunks("peer-0", msgspec.msgpack.encode(bad)))


def test_who_waits_for_what_is_not_here_takes_no_place(swarm: Swarm) -> None:
    learner = swarm.learner()
    learner.publish(1, snapshot(0))
    until(lambda: learner.announced() == 1, "it is published")
    worker = swarm.worker("worker")
    arrives(worker, 1, snapshot(0))
    for node, version in ((learner, 2), (learner, 2**62), (worker, 2**62)):
        with pytest.raises(LookupError, match="is unknown here"):
            next(
                node._serving.uploads.send_chunks(
                    "stranger", msgspec.msgpack.encode(ChunksRequest(version, "whole", 0))
                )
            )
    uploads, want = worker._serving.uploads, msgspec.msgpack.encode(ChunksRequest(2, "whole", 0))
    waiting = [uploads.send_chunks(f"stranger-{i}", want) for i in range(20)]
    assert [next(stream) for stream in waiting] == [None] * 20 and uploads.fed() == ()
    uploads._clock = lambda: time.monotonic() + 60
    with pytest.raises(LookupError, match="is unknown here"):
        next(waiting[0])


def test_whom_the_plan_does_not_name_makes_room_and_so_does_who_takes_nothing(swarm: Swarm) -> None:
    learner = swarm.learner()
    learner.publish(1, snapshot(0))
    until(lambda: learner.announced() == 1, "it is published")
    uploads, want = learner._serving.uploads, msgspec.msgpack.encode(ChunksRequest(1, "whole", 0))
    now = 0.0
    uploads._clock = lambda: now
    uploads.follow(Slot((), 1, None, feeds=("child",)), {"child", "worker", "other"})
    strangers = [uploads.send_chunks(f"stranger-{i}", want) for i in range(2)]
    child, worker, other = (uploads.send_chunks(name, want) for name in ("child", "worker", "other"))
    assert all(map(next, (*strangers, worker, child))) and set(uploads.fed()) == {"worker", "child"}
    assert [list(stream) for stream in strangers] == [[], []], "they are hung up on"
    with pytest.raises(LookupError, match="all upload slots are taken"):
        next(other)
    # The worker takes nothing any more; the child goes on.
    now = 60.0
    assert next(child) and next(uploads.send_chunks("other", want)) and set(uploads.fed()) == {"child"} | {"other"}


def test_nobody_gets_the_same_part_for_ever(swarm: Swarm) -> None:
    learner = swarm.learner()
    learner.publish(1, snapshot(0))
    want = msgspec.msgpack.encode(ChunksRequest(1, "whole", 0))
    until(lambda: (stored := learner._serving.store.get(1)) and stored.complete, "it is written")
    for _ in range(MAX_REPEATS):
        assert sum(map(len, filter(None, learner._serving.uploads.send_chunks("stranger", want)))) == len(snapshot(0))
    with pytest.raises(LookupError, match="times already"):
        list(learner._serving.uploads.send_chunks("stranger", want))


def test_larger_snapshots_than_the_model_are_not_fetched(swarm: Swarm) -> None:
    worker = swarm.worker("worker", max_bytes=CHUNK)
    manifest, _ = describe(RUN_ID, LEARNER.peer_id, 1, held(snapshot(0)), None, CHUNK)
    with pytest.raises(Refusal, match="oversized"):
        worker._on_news(LEARNER.peer_id, seal_snapshot(LEARNER, manifest), None)
    assert worker.announced() is None and worker.counters()["refused_manifests"] == 1


def test_an_error_of_the_relay_ends_it_only_when_it_stays(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_module, "RETRY_S", 0.01)
    learner, worker = swarm.learner(), swarm.worker("worker")
    problems = [ValueError(), OverflowError(), KeyError(), RecursionError()]
    real = worker._fetch

    def fetch(*args: Any) -> None:
        if problems:
            raise problems.pop()
        real(*args)

    monkeypatch.setattr(worker, "_fetch", fetch)
    learner.publish(1, snapshot(0))
    arrives(worker, 1, snapshot(0))
    assert worker.counters()["relay_errors"] == 4
    problems += [MemoryError()] * MAX_FAILURES
    learner.publish(2, snapshot(1))
    until(lambda: worker._thread.failure, "the node hears of it")
    with pytest.raises(SnapshotError, match="MemoryError"):
        worker.newest()


def test_a_part_takes_only_the_next_chunk_it_should_have(tmp_path: Path) -> None:
    content = snapshot(0, 3 * CHUNK + 1)
    chunks, digest = cut(held(content), CHUNK)
    part = Part(tmp_path / "part", chunks)
    with pytest.raises(CorruptChunk):
        part.add(content[CHUNK : 2 * CHUNK])
    for start in range(0, len(content), CHUNK):
        part.add(content[start : start + CHUNK])
    assert part.complete and content_of(part.file) == content and part.has(digest)
    assert (part.read(3), part.num_bytes_held) == (content[-1:], len(content))
    again = Part(tmp_path / "part", chunks)
    again.verify()
    assert again.complete and again.has(digest)


def test_what_the_learner_has_cut_itself_is_stored_as_it_is(tmp_path: Path) -> None:
    content = snapshot(0, 3 * CHUNK + 1)
    chunks, digest = cut(held(content), CHUNK)
    own, packed = Part(tmp_path / "part", chunks), held(content, tmp_path)
    before = packed.path
    own.adopt(packed, digest)
    assert own.complete and content_of(own.file) == content and own.has(digest) and not own.has(bytes(32))
    assert not before.exists() and packed.path == tmp_path / "part", "no byte was written twice"
    again = Part(tmp_path / "part", chunks)  # in the next process nothing is taken on trust
    again.verify()
    assert again.complete and again.has(digest)


def test_a_packed_file_that_another_process_deletes_is_stored_from_the_open_one(tmp_path: Path) -> None:
    content = snapshot(0, 3 * CHUNK + 1)
    chunks, digest = cut(held(content), CHUNK)
    packed = held(content, tmp_path)
    packed.path.unlink()
    Part(tmp_path / "part", chunks).adopt(packed, digest)
    again = Part(tmp_path / "part", chunks)
    again.verify()
    assert again.complete and again.has(digest)


class Versions:
    """A store, and versions that differ in little."""

    def __init__(self, folder: Path) -> None:
        self.store = SnapshotStore(folder, keep=1)
        self.folder = folder.with_name(f"{folder.name}-packed")
        self.before: tuple[int, RandomAccessFile] | None = None

    def begin(self, version: int, content: bytes) -> Stored:
        self.whole = held(content, self.folder)
        manifest, self.change = describe(RUN_ID, LEARNER.peer_id, version, self.whole, self.before, CHUNK)
        self.before = (version, self.whole)
        return self.store.begin(seal_snapshot(LEARNER, manifest), manifest)

    def add(self, version: int, content: bytes) -> Stored:
        stored = self.begin(version, content)
        if stored.change is not None and self.change is not None:
            stored.change.adopt(self.change)
        stored.whole.adopt(self.whole, stored.manifest.digest)
        return stored

    def held(self) -> dict[int, tuple[bool, bool]]:
        """By version: whether the whole is complete, and the delta."""
        found = {version: self.store.get(version) for version in self.store.versions()}
        return {
            version: (each.complete, each.change is not None and each.change.complete)
            for version, each in found.items()
            if each is not None
        }


def test_of_older_versions_the_deltas_are_kept_while_they_take_fewer_bytes_than_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions, content = Versions(tmp_path), snapshot(0)
    first = versions.add(0, content)
    reader = first.whole
    num_bytes = 0
    for version in range(1, 4):
        content = step(content)
        change = versions.add(version, content).change
        assert change is not None
        num_bytes += change.chunks.num_bytes
        versions.store.collect()
    assert versions.held() == {1: (False, True), 2: (False, True), 3: (True, True)}
    assert num_bytes < len(content) and (tmp_path / "1" / "whole").stat().st_size == 0
    assert content_of(reader.file) == snapshot(0), "who reads what was removed can finish"
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "MAX_DELTAS", 2)
        versions.store.collect()
    assert versions.held() == {2: (False, True), 3: (True, True)}
    again = SnapshotStore(tmp_path, keep=1)
    again.load(lambda sealed: open_snapshot(sealed, RUN_ID, LEARNER.peer_id))
    versions.store = again
    for version in again.versions():
        if (stored := again.get(version)) is not None:
            stored.verify()
    assert versions.held() == {2: (False, True), 3: (True, True)}, "as in the process before"
    # Half of the bytes are new, twice: the whole costs less than both deltas.
    half = len(content) // 2 + 3 * CHUNK
    for version in (4, 5):
        content = snapshot(version, half) + content[half:]
        versions.add(version, content)
    again.collect()
    assert versions.held() == {5: (True, True)}


def test_on_a_full_disk_only_the_newest_and_what_is_wanted_stay(tmp_path: Path) -> None:
    versions, content = Versions(tmp_path), snapshot(0)
    for version in range(4):
        content = step(content)
        versions.add(version, content)
    for version in (4, 5):
        versions.begin(version, snapshot(version)).whole.add(snapshot(version)[:CHUNK])
    assert versions.store.drop_unfinished(5) and sorted(versions.held()) == [0, 1, 2, 3, 5]
    assert not versions.store.drop_unfinished(5), "there is nothing more"
    versions.store.make_room()
    assert sorted(versions.held()) == [3, 5]


def test_a_stream_sends_what_is_held_of_a_version_that_is_removed_meanwhile(tmp_path: Path) -> None:
    versions, content = Versions(tmp_path), snapshot(0)
    uploads = Uploads(versions.store, Counters(), num_slots=2)
    versions.add(1, content)
    begun = versions.begin(2, content).whole
    for start in (0, CHUNK):
        begun.add(content[start : start + CHUNK])
    complete, incomplete = (
        uploads.send_chunks(f"peer-{version}", msgspec.msgpack.encode(ChunksRequest(version, "whole", 0)))
        for version in (1, 2)
    )
    assert next(complete) == next(incomplete) == content[:CHUNK]
    for version in (1, 2):
        versions.store.remove(version)
    assert b"".join(filter(None, complete)) == content[CHUNK:]
    assert next(incomplete) == content[CHUNK : 2 * CHUNK]
    with pytest.raises(LookupError, match="was removed here"):
        next(incomplete)


def test_a_learner_hears_at_once_of_a_size_that_cannot_be_published(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks_module, "MAX_SNAPSHOT_CHUNKS", NUM_CHUNKS - 1)
    learner = swarm.learner()
    with pytest.raises(SnapshotError, match="a larger network.snapshots.chunk_bytes allows more"):
        learner.publish(1, snapshot(0))
    learner.check()
    learner.publish(1, snapshot(0)[:-CHUNK])
    until(lambda: learner.counters().get("published"), "it goes on")


def test_a_learner_hears_that_it_can_publish_nothing_more(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_module, "RETRY_S", 0.01)
    learner = swarm.learner()

    def publish(*args: object) -> None:
        raise MemoryError

    monkeypatch.setattr(learner, "_publish", publish)
    learner.check()
    learner.publish(1, snapshot(0))
    until(lambda: learner._thread.failure, "its thread has ended")
    with pytest.raises(SnapshotError, match="MemoryError"):
        learner.check()


def test_a_snapshot_is_cut_into_about_256_chunks() -> None:
    assert [chunk_bytes_for(size) for size in (1, 2**24, 2**30, 2**34)] == [2**15, 2**16, 2**22, 2**22]
    with pytest.raises(SnapshotError, match="at least 1 byte"):
        cut(held(b""), 1_024)
    with pytest.raises(SnapshotError, match="a larger network.snapshots.chunk_bytes allows more"):
        cut(held(bytes(1_024 * 16_384 + 1)), 1_024)
    assert check_size(2**36, None) == 2**22
    for chunk_bytes in (None, 2**15, 2**22):
        with pytest.raises(SnapshotError, match="no chunk_bytes allows as much"):
            check_size(2**36 + 1, chunk_bytes)
