"""The py-libp2p transport on real sockets: discovery, junk on the wire, failures of the library, bans."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from swarm.errors import PeerUnreachable, TransportError
from swarm.extras.libp2p.transport import Libp2pTransport
from swarm.net.backends import fetch_manifest, open_transport
from swarm.net.config import NetworkSettings
from swarm.net.records.envelope import encode_request, read_answer
from swarm.net.records.feed import FEED_PROTOCOL
from swarm.net.records.identity import Identity
from swarm.net.records.wire import seal_manifest
from swarm.net.services.requests import MANIFEST_PROTOCOL, PEERS_PROTOCOL
from swarm.net.services.streams import MAX_STREAMS_PER_PEER
from tests.net.records import exchange, fast_settings, free_port, make_identity, make_manifest, until

if TYPE_CHECKING:  # libp2p, which only some processes may import
    from swarm.extras.libp2p.host import Host

pytestmark = [
    pytest.mark.network,
    pytest.mark.libp2p,
    pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning"),
]

Start = Callable[..., Libp2pTransport]


def test_a_node_that_knows_one_finds_the_other_by_asking(start: Start) -> None:
    a = start("founder")
    b = start("b", a.multiaddrs())
    c = start("c", a.multiaddrs())
    everyone = {a.peer_id, b.peer_id, c.peer_id}
    for node in (a, b, c):
        until(lambda node=node: set(node.status().connected) == everyone - {node.peer_id}, "a full mesh")
    until(lambda: {record.model for record in c.peers()} == {"founder", "b"}, "both records are known")
    # Without the node that introduced them the two still hear each other.
    a.close()
    until(lambda: b.status().connected == (c.peer_id,), "the first node's departure is seen")
    exchange(b, c, b"without a")
    exchange(c, b, b"back")


def test_a_bootstrap_that_appears_later_is_joined_without_help(start: Start, tmp_path: Path) -> None:
    founder = make_identity(tmp_path, "founder")
    founder.close()
    address = f"/ip4/127.0.0.1/tcp/{free_port()}"
    b = start("b", (f"{address}/p2p/{founder.peer_id}",))
    until(lambda: "no bootstrap reachable" in b.status().detail, "the failure is told")
    assert f"{address}: connection refused; next try in" in b.status().detail
    a = start("founder", listen=(address,))
    until(lambda: b.status().connected == (a.peer_id,), "the bootstrap is joined")
    until(b.manifest, "the run is learned")
    exchange(b, a, b"found you")


def test_manifest_can_be_fetched_without_a_node(start: Start) -> None:
    a = start("founder")
    port = free_port()
    dead = f"/ip4/127.0.0.1/tcp/{port}/p2p/{Identity.generate().peer_id}"
    run = fetch_manifest([dead, *a.multiaddrs()], 20.0, transport="libp2p")
    assert run.manifest == a.manifest() and run.sealed == a.sealed_manifest()
    with pytest.raises(PeerUnreachable, match="expected the run 'other'"):
        fetch_manifest(a.multiaddrs(), 20.0, run_id="other", transport="libp2p")
    impostor = a.multiaddrs()[0].replace(a.peer_id, Identity.generate().peer_id)
    with pytest.raises(PeerUnreachable) as nobody:
        fetch_manifest([dead, "/dns4/no-such-host.invalid/tcp/1/p2p/" + a.peer_id, impostor], 20.0, transport="libp2p")
    assert f"/ip4/127.0.0.1/tcp/{port}: connection refused" in str(nobody.value)
    assert "no-such-host.invalid" in str(nobody.value) and a.multiaddrs()[0].split("/p2p/")[0] in str(nobody.value)


def test_a_forged_manifest_is_refused(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    liar = start("liar")
    victim = make_identity(tmp_path, "victim")
    forged = seal_manifest(make_identity(tmp_path, "mallory"), make_manifest(victim))
    monkeypatch.setattr(liar._member.run, "sealed", forged)
    node = start("node", liar.multiaddrs())
    until(lambda: node.counters().get("refused_manifests"), "the forgery is counted")
    assert node.manifest() is None


def attack(target: Libp2pTransport, assault: Callable[..., Awaitable[None]]) -> None:
    """Run `assault(host, peer id)` on a py-libp2p host of its own, connected to `target`."""
    import trio
    from libp2p.peer.id import ID

    from swarm.extras.libp2p.host import open_host
    from swarm.net.guard import Counters

    async def run() -> None:
        with trio.fail_after(120):
            async with open_host(secrets.token_bytes(32), (), (), Counters()) as host:
                await host.connect(target.peer_id, [target.multiaddrs()[0].split("/p2p/")[0]])
                await assault(host._host, ID.from_base58(target.peer_id))

    trio.run(run)


def test_junk_on_the_wire_is_counted_and_ends_nothing(start: Start) -> None:
    a = start("founder")
    b = start("b", a.multiaddrs())
    until(lambda: a.status().connected == (b.peer_id,) and b.status().connected, "both connect")
    _, _, host, _, port = a.multiaddrs()[0].split("/")[:5]

    # Bytes that are no handshake.
    for junk in (b"", b"\x13/multistream/1.0.0\n", bytes(17), secrets.token_bytes(4_096)):
        with closing(socket.create_connection((host, int(port)))) as plain:
            plain.sendall(junk)

    # 17 bytes that end an unguarded node: a frame that is no message. Then one cut short, one endless, one not UTF-8.
    junk_frames = (
        bytes((16,)) + b"\xff" * 16,
        bytes((200, 1)) + b"\xff" * 15,
        b"\xff" * 17,
        b"",
        secrets.token_bytes(1_000),
    )

    async def junk_streams(host, peer) -> None:  # type: ignore[no-untyped-def]
        import trio

        for protocol in (FEED_PROTOCOL, MANIFEST_PROTOCOL, PEERS_PROTOCOL, "/ipfs/id/1.0.0", "/ipfs/ping/1.0.0"):
            for junk in junk_frames:
                stream = await host.new_stream(peer, [protocol])
                await stream.write(junk)
                await stream.close()
        await trio.sleep(0.5)

    attack(a, junk_streams)
    until(lambda: a.counters().get("bad_streams", 0) >= 3, "broken streams are counted")
    assert a.counters().get("network_restarts", 0) == 0
    assert a.status().connected == (b.peer_id,)
    exchange(b, a, b"still here")
    exchange(a, b, b"and here")
    until(lambda: b.request(a.peer_id, MANIFEST_PROTOCOL, b"", 5.0) == a.sealed_manifest(), "requests are answered")


def test_a_banned_peer_is_cut_off_until_the_ban_ends(start: Start) -> None:
    a = start("founder")
    b = start("b", a.multiaddrs())
    until(lambda: a.status().connected == (b.peer_id,) and b.status().connected, "both connect")
    a.ban([b.peer_id])
    until(lambda: a.status().connected == (), "the banned peer is cut off")
    assert a.counters()["banned_connections"] >= 1
    a.ban([])
    until(lambda: a.status().connected == (b.peer_id,) and b.status().connected, "it is back when the ban is over")
    exchange(b, a, b"sorry")


@asynccontextmanager
async def two_hosts() -> AsyncIterator[tuple[Host, Host]]:
    """Listening on loopback, and not connected."""
    from swarm.extras.libp2p.host import open_host
    from swarm.net.guard import Counters

    listen = ("/ip4/127.0.0.1/tcp/0",)
    async with (
        open_host(secrets.token_bytes(32), listen, (), Counters()) as first,
        open_host(secrets.token_bytes(32), listen, (), Counters()) as second,
    ):
        yield first, second


def test_a_connection_made_while_another_is_closed_is_not_forgotten() -> None:
    import trio

    async def redial(first: Host, second: Host) -> None:
        for address in first.listening():
            await second.connect(first.peer_id, [address])

    async def run() -> None:
        async with two_hosts() as (first, second):
            await redial(first, second)
            while not first.connected():
                await trio.sleep(0.01)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first.drop, second.peer_id)
                # The drop waits for its connection to end; another is made in the meantime.
                nursery.start_soon(redial, first, second)
            with trio.fail_after(30):
                while bool(first.connected()) != bool(second.connected()):
                    await trio.sleep(0.01)
                await first.drop(second.peer_id)
                while first.connected() or second.connected():
                    await trio.sleep(0.01)

    trio.run(run)


def test_a_peer_is_served_so_many_streams_at_once_and_told_when_it_asks_for_more(start: Start) -> None:
    from libp2p.network.stream.net_stream import NetStream

    a = start("founder")
    replies: list[str] = []

    async def crowd(host, peer) -> None:  # type: ignore[no-untyped-def]
        idle = [await host.new_stream(peer, [MANIFEST_PROTOCOL]) for _ in range(2 * MAX_STREAMS_PER_PEER - 1)]
        for _ in range(2):
            stream: NetStream = await host.new_stream(peer, [MANIFEST_PROTOCOL])
            await stream.write(encode_request(b""))
            async with aclosing(read_answer(partial(_read_exactly, stream), 10**6)) as chunks:
                try:
                    replies.append(str(sum([len(chunk) async for chunk in chunks])))
                except PeerUnreachable as error:
                    replies.append(str(error))
            if idle:
                for each in idle:
                    await each.reset()
                idle.clear()
                with trio.move_on_after(5):
                    while a.counters().get("bad_streams", 0) < 2 * MAX_STREAMS_PER_PEER - 1:
                        await trio.sleep(0.05)

    import trio

    from swarm.extras.libp2p.host import _read_exactly

    attack(a, crowd)
    assert replies == ["it answered with an error: busy, ask later", str(len(a.sealed_manifest() or b""))]


def test_where_a_peer_comes_from_is_known(start: Start) -> None:
    a = start("founder")
    b = start("b", a.multiaddrs())
    assert until(lambda: a.observed(b.peer_id), "its address is seen")[0].startswith("/ip4/127.0.0.1/tcp/")
    assert a.observed(Identity.generate().peer_id) == ()


def test_an_unforeseen_error_costs_neither_the_session_nor_the_node(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = start("founder")
    addresses = a.multiaddrs()

    def fail_once(connected: frozenset[str], members: frozenset[str]) -> None:
        monkeypatch.undo()
        raise LookupError("unforeseen")

    monkeypatch.setattr(a._member.peers, "update", fail_once)
    until(lambda: a.counters().get("loop_errors") == 1, "the error is counted")
    b = start("b", addresses)
    until(b.manifest, "the node works on, where it was")
    assert a.multiaddrs() == addresses and a.counters().get("network_restarts", 0) == 0


def test_a_network_that_keeps_failing_stops_the_transport_loudly(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from swarm.extras.libp2p import host as libp2p_host, transport as module

    a = start("founder")
    monkeypatch.setattr(module, "MAX_RESTARTS_IN_A_ROW", 2)

    def fail(*arguments: object) -> None:
        raise LookupError("again")

    monkeypatch.setattr(libp2p_host, "open_host", fail)
    assert a._scope is not None
    a._soon(a._scope.cancel)

    def failed() -> bool:
        try:
            a.drain()
        except TransportError as error:
            return "3 times in a row" in str(error)
        return False

    until(failed, "the transport gives up")
    with pytest.raises(TransportError, match="in a row"):
        a.publish(b"x")


def test_what_cannot_work_is_refused_at_start(start: Start, tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="file"):
        Libp2pTransport(fast_settings(), Identity.generate())
    a = start("founder")
    with pytest.raises(TransportError, match="once"):
        a.start()
    # py-libp2p itself would share the port.
    with pytest.raises(TransportError, match="it is taken"):
        start("b", listen=(a.multiaddrs()[0].split("/p2p/")[0],))
    with pytest.raises(TransportError, match="listens on"):
        start("c", listen=("/ip4/127.0.0.1/udp/0/quic-v1",))


def test_the_factory_takes_what_the_settings_name(tmp_path: Path) -> None:
    node = open_transport(NetworkSettings(transport="libp2p"), make_identity(tmp_path, "node"))
    assert isinstance(node, Libp2pTransport)


def test_a_wildcard_is_told_as_the_addresses_of_this_machine(start: Start) -> None:
    a = start("founder", listen=("/ip4/0.0.0.0/tcp/0",))
    assert any(address.startswith("/ip4/127.0.0.1/tcp/") for address in a.multiaddrs())
    assert all("/0.0.0.0/" not in address for address in a.multiaddrs())
    b = start("b", a.multiaddrs())
    until(b.manifest, "any of them can be dialled")


def test_other_addresses_of_this_machine_are_noticed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from swarm.extras.libp2p import host as libp2p_host

    a = start("founder", listen=("/ip4/0.0.0.0/tcp/0",))
    for lease in ("192.168.1.5", "10.7.0.9"):
        interfaces = {"wlan0": [SimpleNamespace(family=socket.AF_INET, address=lease)]}
        monkeypatch.setattr(libp2p_host.psutil, "net_if_addrs", lambda interfaces=interfaces: interfaces)
        until(lambda lease=lease: a.multiaddrs()[0].startswith(f"/ip4/{lease}/tcp/"), "it is told")


def test_a_closed_node_leaves_no_thread(start: Start) -> None:
    before = set(threading.enumerate())
    a = start("founder")
    assert any(thread.name == "swarm-network" for thread in set(threading.enumerate()) - before)
    a.close()
    until(lambda: not any(thread.name == "swarm-network" for thread in threading.enumerate()), "it ends")


def test_peers_that_stay_in_a_state_are_told_once_each_time() -> None:
    from swarm.extras.libp2p.session import Lasting

    lasting = Lasting()
    assert lasting.longer_than(5.0, {"a", "b"}, 0.0) == lasting.longer_than(5.0, {"a", "b"}, 5.0) == frozenset()
    assert lasting.longer_than(5.0, {"b"}, 6.0) == {"b"}
    assert lasting.longer_than(5.0, {"a", "b"}, 7.0) == frozenset(), "both begin anew"
    assert lasting.longer_than(5.0, {"a", "b"}, 12.5) == {"a", "b"}


def test_the_settings_that_matter_are_in_force() -> None:
    """The names patched are private to py-libp2p 0.8.1: on another version check `libp2p_host`, then this."""
    from swarm.extras.libp2p.host import _make_host
    from swarm.extras.libp2p.muxer import Holdings
    from swarm.net.guard import Counters

    network = _make_host(bytes(32), (), Holdings(2**30, Counters())).get_network()
    assert set(network.upgrader.security_multistream.transports) == {"/noise"}
    assert set(network.upgrader.muxer_multistream.transports) == {"/yamux/1.0.0"}, "others have no pings"
    assert network.retry_config.max_retries == 0
