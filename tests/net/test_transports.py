"""The contract of `Transport`, on every implementation."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from swarm.errors import PeerUnreachable, TransportError
from swarm.extras.libp2p.transport import Libp2pTransport
from swarm.net.config import NetworkSettings
from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.membership.dialling import Dialling
from swarm.net.membership.traffic import OUTBOX_RECORDS
from swarm.net.records.envelope import MAX_CHUNK_BYTES
from swarm.net.records.identity import Identity
from swarm.net.records.offers import describe, seal_offers
from swarm.net.records.stores import record_id
from swarm.net.records.wire import Limits, SealedManifest, seal
from swarm.types import Arrival, OfferedGroup, OfferedGroups, RefusedRecord

from .hub import DirectHub, DirectTransport
from .records import (
    IDENTITIES,
    drained,
    fast_settings,
    make_group,
    make_identity,
    make_manifest,
    opened,
    sealed_manifest,
    signed,
    until,
)

AnyTransport = MemoryTransport | DirectTransport | HivemindTransport | Libp2pTransport


class Network:
    """Makes nodes that can find each other; closes them at the end."""

    def __init__(self, make: Callable[[Identity, bytes | None], AnyTransport], folder: Path) -> None:
        self._make = make
        self._folder = folder
        self.nodes: list[AnyTransport] = []
        self.elsewhere: tuple[str, ...] = ()
        """Addresses that later nodes have as bootstraps besides those of the earlier ones."""
        self.changes: dict[str, object] = {}
        """Settings of later nodes."""

    def identity(self, name: str) -> Identity:
        return make_identity(self._folder, name)

    def node(self, identity: Identity, manifest: SealedManifest | None = None) -> AnyTransport:
        node = self._make(identity, manifest)
        self.nodes.append(node)
        return node


@pytest.fixture(
    params=[
        "memory",
        "direct",
        pytest.param("hivemind", marks=pytest.mark.network),
        pytest.param("libp2p", marks=[pytest.mark.network, pytest.mark.libp2p]),
    ]
)
def network(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Network]:
    hub, direct_hub = MemoryHub(), DirectHub()

    def settings() -> NetworkSettings:
        bootstrap = (*network.elsewhere, *(address for node in network.nodes for address in node.multiaddrs()))
        return fast_settings(bootstrap).model_copy(update=network.changes)

    def memory(identity: Identity, manifest: SealedManifest | None) -> AnyTransport:
        return MemoryTransport(hub, identity.peer_id, manifest, limits=Limits(max_record_bytes=64 * 2**20))

    def direct(identity: Identity, manifest: SealedManifest | None) -> AnyTransport:
        return DirectTransport(direct_hub, settings().model_copy(update={"bootstrap": ()}), identity, manifest)

    def hivemind(identity: Identity, manifest: SealedManifest | None) -> AnyTransport:
        return HivemindTransport(settings(), identity, manifest)

    def libp2p(identity: Identity, manifest: SealedManifest | None) -> AnyTransport:
        return Libp2pTransport(settings(), identity, manifest)

    makes = {"memory": memory, "direct": direct, "hivemind": hivemind, "libp2p": libp2p}
    network = Network(makes[request.param], tmp_path)
    yield network
    for node in network.nodes:
        node.close()
    direct_hub.close()


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
    until(lambda: records.extend(drained(node)) or len(records) >= count, f"{count} records arrive")
    return records


def test_contract_of_two_nodes(pair: tuple[AnyTransport, AnyTransport]) -> None:
    # One test, not ten: starting daemons is what takes the time.
    first, second = pair
    assert first.status().connected == (second.peer_id,) and second.status().connected == (first.peer_id,)
    assert first.status().alone_since is None
    assert first.status().run_id == second.status().run_id == second.manifest().run_id  # type: ignore[union-attr]
    assert second.sealed_manifest() == first.sealed_manifest()

    assert not second.wait(0.0)
    sent = [signed(first, b"record %d" % i) for i in range(20)]
    for record in sent:
        first.publish(record)
    assert second.wait(10.0)
    # Gossip checks signatures in parallel: the order is kept mostly, not always.
    assert sorted(arrive(second, 20)) == sorted(sent)
    big = signed(second, os.urandom(900_000))
    second.publish(big)
    assert arrive(first, 1) == [big]
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
        assert time.monotonic() - began < 5, "it ended, and was not given up"
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
    same = signed(first, b"same")
    for _ in range(3):
        first.publish(same)
    other = signed(first, b"other")
    first.publish(other)
    assert arrive(second, 2) == [same, other] and second.counters()["delivered"] == 2


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

    def late(remote: str, request: bytes) -> Iterator[bytes | None]:
        return iter((None, b"a", None, None, b"b")) if request == b"late" else iter(lambda: None, b"")

    first.serve_stream("/test/late", late)
    asked = second.stream(first.peer_id, "/test/late", b"late", 60.0, 10)
    assert list(asked) == [b"a", b"b"], "a handler takes its time"
    with pytest.raises(PeerUnreachable, match=r"0\.2 s"):
        list(second.stream(first.peer_id, "/test/late", b"never", 0.2, 10))
    # Hanging up early, many times, costs neither side anything.
    for _ in range(40):
        assert next(ask(bytes((200,))))
    assert second.request(first.peer_id, "/test/echo", b"hi", 5.0)
    assert first.counters()["handler_errors"] == 1


def test_a_peer_that_is_known_but_not_connected_is_dialled_to_be_asked(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody is dialled for any other reason.
    monkeypatch.setattr(Dialling, "due", lambda self, connected: {})
    founder = network.identity("founder")
    first = network.node(founder, sealed_manifest(founder))
    first.serve("/test/echo", lambda remote, request: request)
    first.serve_stream("/test/count", count_bytes)
    first.start()
    asking, streaming = (network.node(network.identity(name)) for name in ("asking", "streaming"))
    for node in (asking, streaming):
        node.start()
    assert asking.request(first.peer_id, "/test/echo", b"hi", 10.0) == b"hi"
    assert sum(map(len, streaming.stream(first.peer_id, "/test/count", bytes((2,)), 10.0, 10**6))) == 600_000
    until(lambda: first.peer_id in asking.status().connected, "the connection stays")


def test_a_peer_that_cannot_be_dialled_is_given_up_in_time(network: Network) -> None:
    silent = Identity.generate().peer_id
    with socket.create_server(("127.0.0.1", 0)) as server:
        network.elsewhere = (f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/{silent}",)
        node = network.node(network.identity("node"))
        node.start()
        began = time.monotonic()
        with pytest.raises(PeerUnreachable):
            node.request(silent, "/test/echo", b"hi", 1.0)
        assert time.monotonic() - began < 8, "not the time that the dial itself would take"


def test_a_record_too_large_for_gossip_arrives_too(pair: tuple[AnyTransport, AnyTransport]) -> None:
    first, second = pair
    small, large = signed(first, b"small"), signed(first, os.urandom(5_000_000))
    first.publish(large)
    first.publish(small)
    assert sorted(arrive(second, 2), key=len) == [small, large]


@pytest.mark.parametrize("limit", ["upload_bytes_per_s", "download_bytes_per_s"])
def test_a_large_record_takes_its_time_and_gossip_goes_on(network: Network, limit: str) -> None:
    founder = network.identity("founder")
    network.changes = {limit: 2**20}
    first = network.node(founder, sealed_manifest(founder))
    first.start()
    second = network.node(network.identity("joiner"))
    second.start()
    until(lambda: second.manifest() and first.status().connected and second.status().connected, "they meet")
    small, large = signed(first, b"small"), signed(first, os.urandom(2_500_000))
    began = time.monotonic()
    first.publish(large)
    first.publish(small)
    if isinstance(first, MemoryTransport):
        assert arrive(second, 2) == [large, small]
        return
    assert arrive(second, 2) == [small, large]
    assert time.monotonic() - began > 2_500_000 / 2**20 - 1, "less a burst, and the last chunk"


def test_who_comes_late_gets_what_was_published_before(network: Network) -> None:
    founder = network.identity("founder")
    first = network.node(founder, sealed_manifest(founder))
    first.start()
    sent = [signed(first, b"early %d" % i) for i in range(5)]
    sent.append(signed(first, os.urandom(1_500_000)))
    for record in sent:
        first.publish(record)
    second = network.node(network.identity("joiner"))
    second.start()
    until(second.manifest, "the joiner learns the run")
    assert sorted(arrive(second, len(sent))) == sorted(sent)
    time.sleep(0.1)
    assert second.drain() == []


def test_what_is_on_offer_is_sent_to_those_who_ask(pair: tuple[AnyTransport, AnyTransport]) -> None:
    first, second = pair
    run = first.manifest()
    assert run is not None
    records = [signed(first, os.urandom(size)) for size in (10, 60_000)]
    groups = [opened(record, run.run_id, now=1_000.0) for record in records]
    offers = [offer for group in groups if (offer := describe(group, 60.0))]
    for record in records:
        first.hold(record)
    first.publish(seal_offers(IDENTITIES[first.peer_id], run.run_id, offers))
    arrived: list[Arrival] = []
    until(lambda: arrived.extend(second.drain()) or arrived, "the offers arrive")
    assert [replace(each, heard_at=0.0) for each in arrived] == [OfferedGroups(first.peer_id, tuple(offers))]
    second.pull(OfferedGroup(first.peer_id, offers[1]), 30.0)
    assert arrive(second, 1) == [records[1]]
    assert second.counters()["pulled"] == 1 and second.complaints() == []
    second.pull(OfferedGroup(first.peer_id, replace(offers[0], record_id=bytes(16))), 0.5)
    until(lambda: second.complaints() == [(first.peer_id, "withheld")], "nobody has it")
    assert second.drain() == [], "what was not asked for is not sent, nor repaired"


def test_what_is_not_signed_is_not_held_for_others(pair: tuple[AnyTransport, AnyTransport]) -> None:
    first, second = pair
    genuine = signed(first, b"genuine")
    forged = genuine[:-1] + bytes((genuine[-1] ^ 1,))
    foreign = seal(IDENTITIES[first.peer_id], "other-run", "group", make_group())
    for record in (b"junk", forged, foreign, genuine):
        first.publish(record)
    arrived: list[Arrival] = []

    def all_arrive() -> bool:
        arrived.extend(second.drain())
        return any(not isinstance(arrival, RefusedRecord) for arrival in arrived)

    until(all_arrive, "the genuine one arrives")
    refused = [arrival.reason for arrival in arrived if isinstance(arrival, RefusedRecord)]
    if isinstance(second, MemoryTransport):
        assert refused == ["malformed", "bad_signature", "wrong_run"], "for the exchange to count"
    else:
        assert refused[0] == "malformed"
        assert (first.peer_id, "bad_gift") in second.complaints(), "and its feed was left: repair brought the genuine"
    store = second._store if isinstance(second, MemoryTransport) else second._member.records.store
    held = [record for record in (b"junk", forged, foreign, genuine) if store.get(record_id(record))]
    assert held == [genuine]


def test_who_is_banned_is_not_heard(pair: tuple[AnyTransport, AnyTransport]) -> None:
    first, second = pair
    first.ban({second.peer_id})
    until(lambda: first.status().connected == () == second.status().connected, "they part")
    second.publish(b"let me in")
    for asking, asked in ((second, first), (first, second)):
        with pytest.raises(PeerUnreachable):
            asking.request(asked.peer_id, "/test/echo", b"let me in", 5.0)
    assert first.status().connected == () and first.drain() == []
    assert first.counters()["banned_connections"] >= 1
    # Each call replaces the set.
    first.ban({Identity.generate().peer_id})
    until(lambda: first.status().connected and second.status().connected, "they meet again")
    thanks = signed(second, b"thank you")
    second.publish(thanks)
    records: list[bytes] = []
    until(lambda: records.extend(drained(first)) or thanks in records, "the other is heard again")


def test_a_banned_peer_is_hung_up_on_at_once_not_at_the_next_look(
    pair: tuple[AnyTransport, AnyTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    # Long enough that no regular look helps; whatever began before is over in the meantime.
    sessions = ["swarm.net.hivemind.session", "swarm.extras.libp2p.session"]
    loaded = [sys.modules[name] for name in sessions if name in sys.modules]
    assert loaded or not isinstance(first, HivemindTransport | Libp2pTransport)
    for session in loaded:
        monkeypatch.setattr(session, "OBSERVE_EVERY_S", 3_600.0)
    time.sleep(1.1)
    first.ban({second.peer_id})
    until(lambda: first.counters().get("banned_connections") and not first.status().connected, "it is hung up on")


def test_what_a_banned_peer_signed_is_refused_whoever_passes_it_on(pair: tuple[AnyTransport, AnyTransport]) -> None:
    first, second = pair
    mallory = Identity.generate()
    run = first.manifest()
    assert run is not None
    first.ban([mallory.peer_id])
    second.publish(seal(mallory, run.run_id, "group", make_group(run.run_id, mallory.peer_id)))
    honest = signed(second, b"honest")
    second.publish(honest)
    assert arrive(first, 1) == [honest]
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
    node.set_manifest(sealed_manifest(founder).sealed)
    assert node.manifest() == make_manifest(founder) and node.status().run_id == make_manifest(founder).run_id
    with pytest.raises(TransportError, match="wrong_run"):
        node.set_manifest(sealed_manifest(founder, "other").sealed)
    assert node.manifest() == make_manifest(founder)
    node.publish(b"y")
    assert node.counters()["no_run"] == 1


def test_records_that_nobody_takes_fill_the_room_until_somebody_comes(network: Network) -> None:
    founder = network.identity("founder")
    first = network.node(founder, sealed_manifest(founder))
    first.start()
    sent = []
    while first.has_room() and len(sent) < OUTBOX_RECORDS:
        sent.append(signed(first, b"early %d" % len(sent)))
        first.publish(sent[-1])
    assert len(sent) == OUTBOX_RECORDS and first.counters().get("drop_outbox", 0) == 0
    assert first.has_room() == isinstance(first, MemoryTransport)
    second = network.node(network.identity("joiner"))
    second.start()
    until(first.has_room, "there is room again")
    assert sorted(arrive(second, len(sent))) == sorted(sent)


def test_a_transport_never_started_can_be_closed(network: Network) -> None:
    network.node(network.identity("node")).close()
