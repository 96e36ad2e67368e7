"""The contract of `Transport`, on every implementation."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swarm.errors import PeerUnreachable, TransportError
from swarm.net.framing import MAX_CHUNK_BYTES
from swarm.net.hivemind import HivemindTransport
from swarm.net.identity import Identity
from swarm.net.libp2p import Libp2pTransport
from swarm.net.memory import MemoryHub, MemoryTransport
from swarm.net.wire import seal

from .records import fast_settings, make_group, make_identity, make_manifest, sealed_manifest, until

AnyTransport = MemoryTransport | HivemindTransport | Libp2pTransport


class Network:
    """Makes nodes that can find each other; closes them at the end."""

    def __init__(self, make: Callable[[Identity, bytes | None], AnyTransport], folder: Path) -> None:
        self._make = make
        self._folder = folder
        self.nodes: list[AnyTransport] = []

    def identity(self, name: str) -> Identity:
        return make_identity(self._folder, name)

    def node(self, identity: Identity, manifest: bytes | None = None) -> AnyTransport:
        node = self._make(identity, manifest)
        self.nodes.append(node)
        return node


@pytest.fixture(
    params=[
        "memory",
        pytest.param("hivemind", marks=pytest.mark.network),
        pytest.param("libp2p", marks=[pytest.mark.network, pytest.mark.libp2p]),
    ]
)
def network(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Network]:
    hub = MemoryHub()

    def bootstrap() -> tuple[str, ...]:
        return tuple(address for node in network.nodes for address in node.multiaddrs())

    def memory(identity: Identity, manifest: bytes | None) -> AnyTransport:
        return MemoryTransport(hub, identity.peer_id, manifest)

    def hivemind(identity: Identity, manifest: bytes | None) -> AnyTransport:
        return HivemindTransport(fast_settings(bootstrap()), identity, manifest)

    def libp2p(identity: Identity, manifest: bytes | None) -> AnyTransport:
        return Libp2pTransport(fast_settings(bootstrap()), identity, manifest)

    network = Network({"memory": memory, "hivemind": hivemind, "libp2p": libp2p}[request.param], tmp_path)
    yield network
    for node in network.nodes:
        node.close()


@pytest.fixture
def pair(network: Network) -> tuple[AnyTransport, AnyTransport]:
    """Two nodes; the second learned the run from the first, and both see each other."""
    founder = network.identity("founder")
    first = network.node(founder, sealed_manifest(founder))
    first.serve("/test/echo", lambda remote, request: remote.encode() + b" said " + request)
    first.serve("/test/fail", lambda remote, request: request[1_000:2_000] + bytes((request[0] + 256,)))
    first.serve_stream("/test/count", count_bytes)
    first.start()
    second = network.node(network.identity("joiner"))
    second.start()
    until(second.manifest, "the joiner learns the run")
    until(lambda: first.status().connected and second.status().connected, "both see each other")
    return first, second


def count_bytes(remote: str, request: bytes) -> Iterator[bytes]:
    for i in range(request[0]):
        yield bytes((i,)) * 300_000
    if len(request) > 1:
        raise LookupError("asked to fail")


def arrive(node: AnyTransport, count: int) -> list[bytes]:
    records: list[bytes] = []
    until(lambda: records.extend(node.drain()) or len(records) >= count, f"{count} records arrive")
    return records


def test_contract_of_two_nodes(pair: tuple[AnyTransport, AnyTransport]) -> None:
    # One test, not ten: starting daemons is what takes the time.
    first, second = pair
    assert first.status().connected == (second.peer_id,) and second.status().connected == (first.peer_id,)
    assert first.status().alone_since is None
    assert first.status().run_id == second.status().run_id == second.manifest().run_id  # type: ignore[union-attr]
    assert second.sealed_manifest() == first.sealed_manifest()

    assert not second.wait(0.0)
    sent = [b"record %d" % i for i in range(20)]
    for record in sent:
        first.publish(record)
    assert second.wait(10.0)
    # Gossip checks signatures in parallel: the order is kept mostly, not always.
    assert sorted(arrive(second, 20)) == sorted(sent)
    second.publish(bytes(900_000))
    assert arrive(first, 1) == [bytes(900_000)]
    assert first.drain() == [] and second.drain() == []
    assert first.counters()["published"] == 20 and first.counters()["delivered"] == 1

    assert second.request(first.peer_id, "/test/echo", b"hi", 5.0) == second.peer_id.encode() + b" said hi"
    second.serve("/test/late", lambda remote, request: request[::-1])

    def ask_late() -> bytes | None:
        try:
            return first.request(second.peer_id, "/test/late", b"abc", 5.0)
        except PeerUnreachable:
            return None

    assert until(ask_late, "a handler added after start answers") == b"cba"

    with pytest.raises(PeerUnreachable):
        second.request(first.peer_id, "/test/nobody-serves-this", b"", 5.0)
    with pytest.raises(PeerUnreachable):
        second.request(first.peer_id, "/test/fail", b"\xff", 5.0)
    assert first.counters()["handler_errors"] == 1
    with pytest.raises(PeerUnreachable):
        second.request(Identity.generate().peer_id, "/test/echo", b"", 5.0)
    with pytest.raises(PeerUnreachable):
        second.request("not a peer id", "/test/echo", b"", 5.0)

    for address in first.multiaddrs():
        assert address.endswith(f"/p2p/{first.peer_id}")
    assert first.multiaddrs()

    for _ in range(2):
        began = time.monotonic()
        second.close()
        assert time.monotonic() - began < 2
    with pytest.raises(TransportError):
        second.publish(b"x")
    with pytest.raises(TransportError):
        second.drain()
    with pytest.raises(TransportError):
        second.wait(0.0)
    until(lambda: first.status().connected == (), "the other's departure is seen")
    assert first.status().alone_since is not None


def test_each_record_is_delivered_once(pair: tuple[AnyTransport, AnyTransport]) -> None:
    first, second = pair
    for _ in range(3):
        first.publish(b"same")
    until(lambda: second.counters().get("duplicates") == 2, "the repeats are counted")
    assert second.drain() == [b"same"] and second.counters()["delivered"] == 1


def test_an_answer_can_be_streamed(pair: tuple[AnyTransport, AnyTransport]) -> None:
    first, second = pair

    def ask(request: bytes, max_bytes: int = 10**8) -> Iterator[bytes]:
        return second.stream(first.peer_id, "/test/count", request, 5.0, max_bytes)

    chunks = list(ask(bytes((40,))))
    assert b"".join(chunks) == b"".join(bytes((i,)) * 300_000 for i in range(40))
    assert max(map(len, chunks)) <= MAX_CHUNK_BYTES
    assert list(ask(bytes((0,)))) == []
    with pytest.raises(PeerUnreachable, match="LookupError|asked to fail"):
        list(ask(bytes((2, 0))))
    for too_much in (ask(bytes((40,)), 1_000_000), ask(bytes(2**20 + 1))):
        with pytest.raises(PeerUnreachable, match="at most"):
            list(too_much)
    # Hanging up early, many times, costs neither side anything.
    for _ in range(40):
        assert next(ask(bytes((200,))))
    assert second.request(first.peer_id, "/test/echo", b"hi", 5.0)
    assert first.counters()["handler_errors"] == 1


def test_a_record_too_large_for_gossip_arrives_too(pair: tuple[AnyTransport, AnyTransport]) -> None:
    first, second = pair
    small, large = b"small", os.urandom(5_000_000)
    first.publish(large)
    first.publish(small)
    assert sorted(arrive(second, 2), key=len) == [small, large]


def test_who_comes_late_gets_what_was_published_before(network: Network) -> None:
    founder = network.identity("founder")
    first = network.node(founder, sealed_manifest(founder))
    first.start()
    sent = [b"early %d" % i for i in range(5)] + [os.urandom(1_500_000)]
    for record in sent:
        first.publish(record)
    second = network.node(network.identity("joiner"))
    second.start()
    until(second.manifest, "the joiner learns the run")
    assert sorted(arrive(second, len(sent))) == sorted(sent)
    time.sleep(0.1)
    assert second.drain() == []


def test_who_is_banned_is_not_heard(pair: tuple[AnyTransport, AnyTransport]) -> None:
    first, second = pair
    first.ban({second.peer_id})
    until(lambda: first.status().connected == () == second.status().connected, "they part")
    second.publish(b"let me in")
    with pytest.raises(PeerUnreachable):
        second.request(first.peer_id, "/test/echo", b"let me in", 5.0)
    assert first.status().connected == () and first.drain() == []
    assert first.counters()["banned_connections"] >= 1
    # Each call replaces the set.
    first.ban({Identity.generate().peer_id})
    until(lambda: first.status().connected and second.status().connected, "they meet again")
    second.publish(b"thank you")
    records: list[bytes] = []
    until(lambda: records.extend(first.drain()) or b"thank you" in records, "the other is heard again")


def test_what_a_banned_peer_signed_is_refused_whoever_passes_it_on(pair: tuple[AnyTransport, AnyTransport]) -> None:
    first, second = pair
    mallory = Identity.generate()
    run = first.manifest()
    assert run is not None
    first.ban([mallory.peer_id])
    second.publish(seal(mallory, run.run_id, "group", make_group(run.run_id, mallory.peer_id)))
    second.publish(b"honest")
    assert arrive(first, 1) == [b"honest"]
    until(lambda: first.counters().get("banned_gossip"), "the refusal is counted")


def test_alone_and_without_a_run_records_are_dropped_and_counted(network: Network) -> None:
    founder = network.identity("founder")
    node = network.node(network.identity("node"))
    with pytest.raises(TransportError):
        node.publish(b"before start")
    node.start()
    status = node.status()
    assert status.run_id is None and status.connected == () and status.alone_since is not None
    node.publish(b"x")
    assert node.counters()["no_run"] == 1
    with pytest.raises(TransportError, match="refused"):
        node.set_manifest(b"junk")
    node.set_manifest(sealed_manifest(founder))
    assert node.manifest() == make_manifest(founder) and node.status().run_id == make_manifest(founder).run_id
    with pytest.raises(TransportError, match="wrong_run"):
        node.set_manifest(sealed_manifest(founder, "other"))
    assert node.manifest() == make_manifest(founder)
    node.publish(b"y")
    assert node.counters()["no_run"] == 1


def test_a_transport_never_started_can_be_closed(network: Network) -> None:
    network.node(network.identity("node")).close()
