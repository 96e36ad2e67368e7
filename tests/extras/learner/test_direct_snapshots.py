"""Snapshots over direct links: real sockets between nodes on a network in memory."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from swarm.extras.direct.server import DirectServer
from swarm.extras.direct.tickets import Ticket, asking_context
from swarm.extras.learner.snapshots import serving as serving_module
from swarm.extras.learner.snapshots.messages import DIRECT_PROTOCOL, ChunksRequest
from swarm.extras.learner.snapshots.store import Part
from swarm.net.in_memory import MemoryTransport
from swarm.net.records.identity import Identity
from tests.extras.learner.snapshot_files import BytesPublisher
from tests.extras.learner.test_snapshots import CHUNK, NUM_CHUNKS, Swarm, arrives, snapshot, step
from tests.net.records import LOOPBACK, until

UNLIMITED = {"listen": LOOPBACK, "upload_bytes_per_s": None, "download_bytes_per_s": None}
MORE_THAN_BUFFERS_HOLD = 1_024


class Seen(MemoryTransport):
    """A node that sees all others on this machine."""

    def observed(self, peer_id: str) -> tuple[str, ...]:
        return LOOPBACK


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    swarm = Swarm(tmp_path)
    yield swarm
    for node in swarm.nodes:
        node.close()


def learner_of(swarm: Swarm) -> BytesPublisher:
    return swarm.learner(Seen, **UNLIMITED)


def linked(asker: MemoryTransport, giver: str, request: bytes) -> tuple[socket.socket, bytes]:
    """A direct link of `asker` that takes little at a time, and its first chunk."""
    answer = asker.request(giver, DIRECT_PROTOCOL, request, 5.0)
    ticket = msgspec.msgpack.decode(answer, type=Ticket)
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
    plain.settimeout(10.0)
    plain.connect(("127.0.0.1", ticket.port))
    link = asking_context().wrap_socket(plain)
    link.sendall(ticket.secret)
    chunk = b""
    while len(chunk) < CHUNK:
        piece = link.recv(CHUNK - len(chunk))
        assert piece
        chunk += piece
    return link, chunk


def test_all_chunks_go_over_direct_links(swarm: Swarm) -> None:
    learner, worker = learner_of(swarm), swarm.worker("worker", Seen, **UNLIMITED)
    learner.publish(1, snapshot(0))
    arrives(worker, 1, snapshot(0))
    learner.publish(2, step(snapshot(0)))
    arrives(worker, 2, step(snapshot(0)))
    assert learner.counters()["direct_links"] == 2
    assert "direct_failures" not in worker.counters()


def test_a_wrong_chunk_on_a_direct_link_is_charged_to_its_giver(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, worker = learner_of(swarm), swarm.worker("worker", Seen, **UNLIMITED)
    honest = Part.read
    monkeypatch.setattr(Part, "read", lambda part, index: bytes(len(honest(part, index))))
    learner.publish(1, snapshot(0))
    until(lambda: worker.counters().get("corrupt_chunks"), "it is noticed")
    assert (learner._transport.peer_id, "corrupt_chunk") in worker.complaints()
    assert worker.newest() is None


def test_the_link_of_a_peer_ends_when_it_is_banned(swarm: Swarm) -> None:
    """Its connections are closed with the ban, but the network knows nothing of this one."""
    learner = learner_of(swarm)
    stranger = swarm._enter(Identity.generate(), Seen)
    content = snapshot(0, MORE_THAN_BUFFERS_HOLD * CHUNK)
    learner.publish(1, content)
    until(lambda: learner.announced() == 1, "it is published")
    request = msgspec.msgpack.encode(ChunksRequest(1, "whole", 0))
    link, chunk = linked(stranger, learner._transport.peer_id, request)
    assert chunk == content[:CHUNK]
    learner._transport.ban([stranger.peer_id])
    received = len(chunk)
    with link:
        while piece := link.recv(2**18):
            received += len(piece)
    assert received < len(content)
    until(lambda: not learner._serving.uploads.fed(), "its place is free")


def test_nothing_more_is_kept_of_a_request_than_it_says(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown fields of later versions are ignored: a megabyte of them is not to wait with each of 64 tickets."""
    kept = []
    issue = DirectServer.ticket

    def noted(server: DirectServer, peer_id: str, request: bytes) -> Ticket:
        kept.append(request)
        return issue(server, peer_id, request)

    monkeypatch.setattr(DirectServer, "ticket", noted)
    learner = learner_of(swarm)
    padded = msgspec.msgpack.encode((1, "whole", NUM_CHUNKS, bytes(2**19)))
    stranger = swarm._enter(Identity.generate(), Seen)
    stranger.request(learner._transport.peer_id, DIRECT_PROTOCOL, padded, 5.0)
    assert kept == [msgspec.msgpack.encode(ChunksRequest(1, "whole", NUM_CHUNKS))]


def test_without_the_extra_chunks_go_over_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    assert serving_module.direct_links() is not None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert serving_module.direct_links() is None
