"""The same attacks on the transport in pure Python, by hosts that keep to no rules."""

from __future__ import annotations

import secrets
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from swarm.errors import PeerUnreachable
from swarm.extras.libp2p import slots
from swarm.extras.libp2p.slots import MAX_SLOTS
from swarm.extras.libp2p.transport import Libp2pTransport
from swarm.net.bandwidth import RatePerName
from swarm.net.records.envelope import encode_request, read_answer
from swarm.net.records.repair import GIVE_PROTOCOL, HAVE_PROTOCOL
from swarm.net.services.requests import MANIFEST_PROTOCOL, PEERS_PROTOCOL
from tests.extras.libp2p.test_libp2p import attack, two_hosts
from tests.net.records import drained, signed, until
from tests.nodes import processes
from tests.nodes.processes import DEADLINE_S, LOOPBACK, Swarm, address_of, swarm

pytestmark = [pytest.mark.network, pytest.mark.libp2p]

Start = Callable[..., Libp2pTransport]


def meets(a: Libp2pTransport, b: Libp2pTransport) -> None:
    until(lambda: a.status().connected and b.status().connected, "both connect")


async def ask(host: Any, peer: Any, protocol: str = MANIFEST_PROTOCOL) -> str:
    """How an answer begins, or why there was none."""
    from swarm.extras.libp2p.host import _read_exactly

    stream = await host.new_stream(peer, [protocol])
    try:
        await stream.write(encode_request(b""))
        async with aclosing(read_answer(partial(_read_exactly, stream), 2**21)) as chunks:
            return "answered" if [len(chunk) async for chunk in chunks] else "nothing"
    except PeerUnreachable as error:
        return str(error)
    finally:
        with suppress(Exception):
            await stream.close()


def test_idle_streams_of_a_stranger_keep_nobody_from_the_services(start: Start) -> None:
    a = start("founder")
    b = start("b", a.multiaddrs())
    meets(a, b)

    async def hold(host: Any, peer: Any) -> None:
        import trio

        for number in range(48):
            protocol = (MANIFEST_PROTOCOL, PEERS_PROTOCOL, GIVE_PROTOCOL, HAVE_PROTOCOL)[number % 4]
            stream = await host.new_stream(peer, [protocol])
            await stream.write(b"\0\0")
        answers = []
        for _ in range(10):
            answers.append(await trio.to_thread.run_sync(partial(b.request, a.peer_id, MANIFEST_PROTOCOL, b"", 10.0)))
        assert answers == [a.sealed_manifest()] * 10

    attack(a, hold)


def test_a_flood_of_requests_is_refused_and_others_are_answered(start: Start) -> None:
    a = start("founder")
    b = start("b", a.multiaddrs())
    meets(a, b)
    # As many as this network cannot send faster.
    a._session._host.gatekeeper.admission._peers = RatePerName(1.0, 20.0)  # type: ignore[union-attr]

    async def flood(host: Any, peer: Any) -> None:
        answers = [await ask(host, peer) for _ in range(60)]
        assert answers[0] == "answered" and any("busy" in answer for answer in answers)

    attack(a, flood)
    assert ("flood" in dict(map(reversed, a.complaints()))) and b.request(a.peer_id, MANIFEST_PROTOCOL, b"", 10.0)


def test_streams_without_end_are_given_up(start: Start) -> None:
    a = start("founder")
    b = start("b", a.multiaddrs())
    meets(a, b)

    async def open_many(host: Any, peer: Any) -> None:
        import trio

        connection = (await host.get_network().dial_peer(peer))[0]
        with trio.move_on_after(10):
            for _ in range(300):
                # No protocol is ever named.
                await connection.new_stream()
        await trio.sleep(0.5)

    attack(a, open_many)
    until(lambda: a.counters().get("crowded_streams"), "more than a peer may have are hung up on")
    assert b.request(a.peer_id, MANIFEST_PROTOCOL, b"", 10.0) == a.sealed_manifest()
    assert a.counters().get("network_restarts", 0) == 0


def test_no_protocol_is_spoken_that_is_not_the_swarm_s(start: Start) -> None:
    a = start("founder")
    refused: list[str] = []

    async def offer(host: Any, peer: Any) -> None:
        for protocol in (
            "/meshsub/1.1.0",
            "/meshsub/1.2.0",
            "/floodsub/1.0.0",
            "/ipfs/kad/1.0.0",
            "/libp2p/dcutr",
        ):
            try:
                await host.new_stream(peer, [protocol])
            except Exception:
                refused.append(protocol)

    attack(a, offer)
    assert len(refused) == 5


def test_a_peer_that_takes_no_bytes_is_hung_up_on_at_once() -> None:
    import trio
    import trio.testing

    async def run() -> None:
        async with two_connected_hosts() as (first, second), trio.open_nursery() as nursery:
            deafen(second)
            (connections,) = first._host.get_network().get_connections_map().values()
            nursery.start_soon(fill, connections[0])
            # The pipe is full.
            await trio.testing.wait_all_tasks_blocked(0.2)
            with trio.fail_after(30):
                await first.drop(second.peer_id)
                while first.connected():
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    async def fill(connection: Any) -> None:
        with suppress(Exception):
            while True:
                await connection.muxed_conn._write_frame(bytes(2**16))

    trio.run(run)


def test_a_connection_is_gone_also_when_everything_stands_still_while_it_is_closed() -> None:
    """As on a starved machine, or a laptop that sleeps for a while."""
    import trio

    from swarm.extras.libp2p.host import CLOSE_TIMEOUT_S

    async def run() -> None:
        async with two_connected_hosts() as (first, second), trio.open_nursery() as nursery:
            nursery.start_soon(first.drop, second.peer_id)
            await trio.sleep(0.05)
            time.sleep(1.2 * CLOSE_TIMEOUT_S)
            with trio.fail_after(30):
                while first.connected():
                    await trio.sleep(0.01)

    trio.run(run)


def test_an_address_is_reached_behind_others_that_never_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    import trio

    from swarm.extras.libp2p import host as host_module

    monkeypatch.setattr(host_module, "DIAL_TIMEOUT_S", 8.0)
    monkeypatch.setattr(host_module, "DIAL_ALL_S", 8.0)

    async def run() -> None:
        with ExitStack() as silent:
            sockets = [silent.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
            addresses = [f"/ip4/127.0.0.1/tcp/{each.getsockname()[1]}" for each in sockets]
            async with two_hosts() as (first, second):
                with trio.fail_after(20):
                    await second.connect(first.peer_id, [*addresses, *first.listening()])
                assert second.connected() == {first.peer_id}

    trio.run(run)


@asynccontextmanager
async def two_connected_hosts() -> AsyncIterator[tuple[Any, Any]]:
    import trio

    async with two_hosts() as (first, second):
        await second.connect(first.peer_id, first.listening())
        while not first.connected():
            await trio.sleep(0.01)
        yield first, second


def deafen(host: Any) -> None:
    """Let the host read no more from its connections, which stay open."""
    import trio

    async def read(count: int | None = None) -> bytes:
        await trio.sleep_forever()
        return b""

    for connections in host._host.get_network().get_connections_map().values():
        for connection in connections:
            connection.muxed_conn.secured_conn.read = read


def test_a_peer_that_answers_no_ping_is_hung_up_on(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from libp2p.stream_muxer.yamux import yamux

    from swarm.extras.libp2p import session

    monkeypatch.setattr(yamux, "RTT_MEASURE_INTERVAL", 0.1)
    monkeypatch.setattr(session, "UNANSWERED_AFTER_S", 2.0)
    a = start("founder")
    b = start("b", a.multiaddrs())
    meets(a, b)
    assert b._session is not None
    monkeypatch.setattr(b._session, "_lost", lambda now: frozenset())
    b._soon(partial(deafen, b._session._host))
    until(lambda: a.counters().get("mute_connections"), "it is noticed")


LOOPS = ("_dial", "_observe", "_join", "_publish_outgoing")
UPKEEP = ("repair", "download", "exchange_peers")
FOLLOWING = ("greet", "follow", "fetch")


def test_every_loop_may_raise_and_the_node_goes_on(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from swarm.extras.libp2p.session import Session
    from swarm.net.membership.following import Following
    from swarm.net.membership.upkeep import Upkeep

    victim: list[Libp2pTransport] = []
    raised: list[str] = []

    def failing(owner: type, name: str) -> None:
        real: Callable[[Any], Awaitable[None]] = getattr(owner, name)

        async def loop(self: Any) -> None:
            if victim and self._member is victim[0]._member and name not in raised:
                raised.append(name)
                raise (OverflowError, LookupError, RecursionError)[len(raised) % 3]("provoked")
            await real(self)

        monkeypatch.setattr(owner, name, loop)

    for name in LOOPS:
        failing(Session, name)
    for name in UPKEEP:
        failing(Upkeep, name)
    for name in FOLLOWING:
        failing(Following, name)
    a = start("founder", before=victim.append)
    b = start("b", a.multiaddrs())
    until(lambda: set(raised) == {*LOOPS, *UPKEEP, *FOLLOWING}, "every loop has raised")
    until(lambda: a.counters().get("loop_errors", 0) >= len(raised), "and was counted")
    meets(a, b)
    record = signed(b, b"after all that")
    b.publish(record)
    until(lambda: record in drained(a), "gossip arrives")
    assert a.counters().get("network_restarts", 0) == 0


DATA, WINDOW_UPDATE, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8
WINDOW = 2**18
"""What a stream may send at first."""
PIECE = bytes(2**15)


def frame(kind: int, flags: int, stream_id: int, body: bytes | int = b"", version: int = 0) -> bytes:
    """A frame of the muxer; `body` may be the number in its slot."""
    length, content = (body, b"") if isinstance(body, int) else (len(body), body)
    return struct.pack("!BBHII", version, kind, flags, stream_id, length) + content


def muxed(host: Any) -> Any:
    """The only connection of a host."""
    ((connection,),) = host.get_network().get_connections_map().values()
    return connection.muxed_conn


async def is_hung_up_on(host: Any, frames: list[bytes]) -> None:
    """Send frames until the connection ends, as it must."""
    import trio

    connection = muxed(host)
    with suppress(Exception):
        for each in frames:
            await connection._write_frame(each)
    with trio.fail_after(10):
        await connection.event_closed.wait()


RULES = {
    "another version": [frame(PING, SYN, 0, 1, version=1)],
    "another type": [frame(7, 0, 0, 2**31)],
    "another flag": [frame(WINDOW_UPDATE, 16, 1)],
    "a stream without a number": [frame(WINDOW_UPDATE, SYN, 0)],
    "a stream of the other side": [frame(WINDOW_UPDATE, SYN, 100)],
    "a stream that is open": [frame(WINDOW_UPDATE, SYN, 101)] * 2,
    "more than the window at once": [frame(DATA, SYN, 101, 2**24)],
    "more than the window in pieces": [frame(WINDOW_UPDATE, SYN, 101), *[frame(DATA, 0, 101, PIECE)] * 9],
    "more with acknowledgements": [frame(WINDOW_UPDATE, SYN, 101), *[frame(DATA, ACK, 101, PIECE)] * 9],
    "more after the end": [frame(WINDOW_UPDATE, SYN | FIN, 101), frame(DATA, 0, 101, PIECE)],
    "bytes for no stream": [frame(DATA, 0, 101, PIECE)],
}


def test_a_frame_against_the_rules_ends_its_connection_and_is_charged(start: Start) -> None:
    a = start("founder")
    b = start("b", a.multiaddrs())
    meets(a, b)
    assert a._session is not None
    # Streams without a protocol are not read, so that nothing but the muxer refuses what comes on them.
    a._session._host._host.multiselect.negotiate = silent
    blamed: list[str] = []
    for name, frames in RULES.items():

        async def break_it(host: Any, peer: Any, frames: list[bytes] = frames) -> None:
            blamed.append(str(host.get_id()))
            await is_hung_up_on(host, frames)

        attack(a, break_it)
        assert (blamed[-1], "flood") in a.complaints(), name
    assert a.status().connected == (b.peer_id,) and a.counters()["refused_connections"] == len(RULES)


async def silent(*arguments: Any) -> Any:
    """Waits until the connection ends, and reads nothing."""
    import trio

    await trio.sleep_forever()


def test_bytes_on_a_stream_that_was_served_are_not_kept(start: Start) -> None:
    a = start("founder")

    async def go_on(host: Any, peer: Any) -> None:
        stream = await host.new_stream(peer, [MANIFEST_PROTOCOL])
        await stream.write(encode_request(b""))
        await stream.read(1)
        sent = [frame(DATA, 0, stream.muxed_stream.stream_id, PIECE)] * 1_000
        await is_hung_up_on(host, sent)

    attack(a, go_on)
    assert a.complaints()


def test_bytes_under_way_to_a_stream_that_ended_here_are_no_offence(start: Start) -> None:
    a = start("founder")

    async def send(host: Any, peer: Any) -> None:
        import trio

        for _ in range(8):
            stream = await host.new_stream(peer, [MANIFEST_PROTOCOL])
            await stream.write(encode_request(b""))
            await stream.read(1)
            # As much as was granted; the first byte resets the stream.
            for _ in range(7):
                await muxed(host)._write_frame(frame(DATA, 0, stream.muxed_stream.stream_id, PIECE))
        await trio.sleep(0.2)
        assert await ask(host, peer) == "answered"

    attack(a, send)
    assert not a.complaints()


def never() -> Iterator[None]:
    """An answer that is never ready."""
    while True:
        yield None


SLOW = "/swarm/test/slow"


async def fill(host: Any, peer: Any, num_streams: int) -> None:
    """Have a window full of unread bytes on each of so many streams."""
    for _ in range(num_streams):
        stream = await host.new_stream(peer, [SLOW])
        await stream.write(encode_request(b""))
        for _ in range(7):
            await muxed(host)._write_frame(frame(DATA, 0, stream.muxed_stream.stream_id, PIECE))


def test_what_all_streams_of_a_connection_hold_is_bounded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from swarm.extras.libp2p import muxer

    monkeypatch.setattr(muxer, "CONNECTION_BYTES", 2**20)
    a = start("founder")
    a.serve_stream(SLOW, lambda peer, request: never())

    async def hold(host: Any, peer: Any) -> None:
        import trio

        with suppress(Exception):
            await fill(host, peer, 10)
        with trio.fail_after(10):
            while host.get_connected_peers():
                await trio.sleep(0.01)

    attack(a, hold)
    assert "flood" in dict(map(reversed, a.complaints()))


def test_of_all_connections_the_one_that_holds_most_is_closed() -> None:
    import trio

    from swarm.extras.libp2p.host import open_host
    from swarm.net.guard import Counters

    async def run() -> None:
        blamed: list[str] = []
        async with (
            open_host(secrets.token_bytes(32), ("/ip4/127.0.0.1/tcp/0",), (), Counters(), 2**21) as victim,
            open_host(secrets.token_bytes(32), (), (), Counters()) as small,
            open_host(secrets.token_bytes(32), (), (), Counters()) as large,
        ):
            victim.holdings.blame = lambda peer, reason: blamed.append(peer)
            victim.answer(SLOW, lambda peer, request: never())
            for host in (small, large):
                await host.connect(victim.peer_id, victim.listening())
            (peer,) = small._host.get_connected_peers()
            await fill(small._host, peer, 3)
            with suppress(Exception):
                await fill(large._host, peer, 12)
            with trio.fail_after(10):
                while victim.connected() != {small.peer_id}:
                    await trio.sleep(0.01)
            assert blamed == [large.peer_id]

    trio.run(run)


def test_a_protocol_s_name_is_not_read_beyond_its_length(start: Start) -> None:
    endless = b"\x13/multistream/1.0.0\n" + b"\xff\xff\xff\xff\x07"
    a = start("founder")
    _, _, address, _, port = a.multiaddrs()[0].split("/")[:5]
    # Before any handshake.
    with socket.create_connection((address, int(port))) as plain:
        plain.settimeout(10.0)
        plain.sendall(endless)
        with suppress(ConnectionError):
            while plain.recv(2**16):
                pass

    async def name_one(host: Any, peer: Any) -> None:
        import trio

        stream = await muxed(host).open_stream()
        await stream.write(endless)
        with trio.fail_after(5), suppress(Exception):
            while True:
                await stream.read(2**16)
        assert stream.closed and await ask(host, peer) == "answered"

    attack(a, name_one)


def test_streams_that_a_peer_leaves_half_closed_are_forgotten(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from swarm.extras.libp2p import host as host_module

    monkeypatch.setattr(host_module, "LINGER_S", 0.05)
    a = start("founder")

    async def leave_open(host: Any, peer: Any) -> None:
        for number in range(40):
            protocol = (MANIFEST_PROTOCOL, "/ipfs/id/1.0.0")[number % 2]
            stream = await host.new_stream(peer, [protocol])
            await stream.write(encode_request(b""))
            await stream.read(1)
        assert a._session is not None
        until(lambda: len(muxed(a._session._host._host).streams) < 8, "they are forgotten")  # type: ignore[union-attr]

    attack(a, leave_open)


def test_what_strangers_say_of_themselves_is_neither_kept_nor_dialled(start: Start) -> None:
    import trio
    from libp2p.host.exceptions import StreamFailure

    from swarm.extras.libp2p.host import open_host
    from swarm.net.guard import Counters

    a = start("founder")
    assert a._session is not None
    network = a._session._host._host.get_network()
    address, peer_id = a.multiaddrs()[0].split("/p2p/")
    with socket.create_server(("127.0.0.1", 0)) as third_party:
        named = f"/ip4/127.0.0.1/tcp/{third_party.getsockname()[1]}"

        async def visit() -> None:
            async with open_host(secrets.token_bytes(32), (), (named,), Counters()) as host:
                await host.connect(peer_id, (address,))
                (peer,) = host._host.get_connected_peers()
                assert await ask(host._host, peer) == "answered"
                with pytest.raises(StreamFailure):
                    await host._host.new_stream(peer, ["/ipfs/id/push/1.0.0"])

        trio.run(visit)
        until(lambda: not a.status().connected, "it has left")
        assert network.peerstore.peers_with_addrs() == [] and not network.auto_connector._recent_disconnects
        # What py-libp2p does by itself each half minute, for those that left a minute ago.
        network.auto_connector._disconnect_backoff = 0.0
        assert a._token is not None
        trio.from_thread.run(network.auto_connector.maybe_connect, trio_token=a._token)
        third_party.settimeout(0.2)
        with pytest.raises(TimeoutError):
            third_party.accept()


def test_neither_another_muxer_nor_another_encryption_is_spoken(start: Start) -> None:
    import trio
    from libp2p import new_host
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.peer.id import ID
    from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
    from libp2p.stream_muxer.mplex.mplex import MPLEX_PROTOCOL_ID, Mplex
    from multiaddr import Multiaddr

    a = start("founder")
    address, peer_id = a.multiaddrs()[0].split("/p2p/")
    key = create_new_key_pair()
    others: list[dict[str, Any]] = [
        {"muxer_opt": {MPLEX_PROTOCOL_ID: Mplex}},
        {"key_pair": key, "sec_opt": {PLAINTEXT_PROTOCOL_ID: InsecureTransport(key)}},
    ]

    async def dial(options: dict[str, Any]) -> None:
        host = new_host(**options)
        async with host.run(listen_addrs=[]):
            await host.get_network().dial_addr(Multiaddr(address), ID.from_base58(peer_id))

    for options in others:
        with pytest.raises(BaseException) as refused:
            trio.run(dial, options)
        assert "negotiate" in "".join(map(str, chain_of(refused.value)))


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error.__context__


FLOODS = {
    "pings": [frame(PING, SYN, 0, 7)] * 2_000,
    "streams that are reset at once": [
        frame(WINDOW_UPDATE, flag, 1_001 + 2 * number) for number in range(1_000) for flag in (SYN, RST)
    ],
    "windows without end": [frame(WINDOW_UPDATE, SYN, 1_001), *[frame(WINDOW_UPDATE, 0, 1_001, 2**32 - 1)] * 2_000],
    "goodbye": [frame(GO_AWAY, 0, 0, 2**32 - 1)],
}


def test_floods_of_control_frames_keep_nobody_from_the_services(start: Start) -> None:
    a = start("founder")
    b = start("b", a.multiaddrs())
    meets(a, b)
    for frames in FLOODS.values():

        async def flood(host: Any, peer: Any, frames: list[bytes] = frames) -> None:
            import trio

            connection = muxed(host)
            with suppress(Exception):
                await connection._write_frame(b"".join(frames))
            answer = partial(b.request, a.peer_id, MANIFEST_PROTOCOL, b"", 10.0)
            assert await trio.to_thread.run_sync(answer) == a.sealed_manifest()

        attack(a, flood)
    assert a.counters().get("network_restarts", 0) == 0 and b.peer_id in a.status().connected


def test_frames_beyond_the_rate_are_read_later() -> None:
    import trio
    import trio.testing

    from swarm.extras.libp2p.muxer import BURST_S, Pace

    async def run() -> float:
        pace, began = Pace(100.0), trio.current_time()
        for _ in range(int(100 * BURST_S) + 300):
            await pace.wait()
        return trio.current_time() - began

    assert trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0)) == pytest.approx(3.0, abs=0.1)


def test_a_frame_that_was_cut_short_ends_its_connection() -> None:
    import trio

    async def run() -> None:
        async with two_connected_hosts() as (first, second):
            deafen(second)
            ((connection,),) = first._host.get_network().get_connections_map().values()
            with trio.move_on_after(1.0):
                while True:
                    await connection.muxed_conn._write_frame(bytes(2**16))
            with trio.fail_after(10):
                while first.connected():
                    await trio.sleep(0.01)

    trio.run(run)


def test_slots_follow_connections(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(slots, "MAX_SLOTS", 4)
    a = start("founder")

    async def leave(host: Any, peer: Any) -> None:
        pass

    for _ in range(12):
        attack(a, leave)
    b = start("b", a.multiaddrs())
    meets(a, b)
    assert not a.counters().get("crowded_connections")


def test_a_newcomer_gets_the_place_of_an_idle_stranger_and_a_member_keeps_its_own(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(slots, "MAX_SLOTS", 4)
    monkeypatch.setattr(slots, "PATIENCE_S", 2.0)
    a = start("founder")
    b = start("b", a.multiaddrs())
    until(lambda: b.peer_id in a._member.peers.in_run, "it is a member")
    _, _, address, _, port = a.multiaddrs()[0].split("/")[:5]
    with ExitStack() as stack:
        # A handshake that never goes on.
        mute = [stack.enter_context(socket.create_connection((address, int(port)))) for _ in range(6)]
        until(lambda: a.counters().get("crowded_connections") == 3, "all slots are taken")
        c = start("c", a.multiaddrs())
        until(lambda: c.peer_id in a.status().connected, "a newcomer is let in")
        assert b.peer_id in a.status().connected and len(mute) == 6


def test_a_peer_with_ipv6_has_an_address_of_its_own() -> None:
    import trio

    from swarm.extras.libp2p.host import open_host
    from swarm.net.guard import Counters

    async def run() -> None:
        async with (
            open_host(secrets.token_bytes(32), ("/ip6/::1/tcp/0",), (), Counters()) as first,
            open_host(secrets.token_bytes(32), (), (), Counters()) as second,
        ):
            await second.connect(first.peer_id, first.listening())
            while not first.connected():
                await trio.sleep(0.01)
            ((address,),) = first.remote_addresses().values()
            assert address.startswith("/ip6/::1/tcp/")

    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    trio.run(run)


def test_a_handshake_has_its_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from swarm.extras.libp2p import host as host_module

    monkeypatch.setattr(host_module, "UPGRADE_TIMEOUT_S", 0.5)
    a = start("founder")
    assert a._session is not None
    _, _, address, _, port = a.multiaddrs()[0].split("/")[:5]
    with socket.create_connection((address, int(port))) as mute:
        mute.settimeout(10.0)
        until(lambda: len(a._session._host.slots) == 1, "it has a slot")  # type: ignore[union-attr]
        while mute.recv(1_024):
            pass
    until(lambda: len(a._session._host.slots) == 0, "it has none")  # type: ignore[union-attr]


def resident(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


@pytest.mark.slow
def test_a_live_node_keeps_its_memory_and_lets_newcomers_in_after_any_number_of_visits(tmp_path: Path) -> None:
    """Real processes: what one connection can send in some seconds, a hundred visits, and a real `swarm join`."""
    import trio

    from swarm.extras.libp2p.host import open_host
    from swarm.net.guard import Counters
    from swarm.policy.tiny import ensure_tiny

    ensure_tiny()
    options = ("--network.transport=libp2p", *LOOPBACK)
    with ExitStack() as stack:

        def node(name: str, *arguments: str) -> Swarm:
            out = tmp_path / name
            return stack.enter_context(swarm(out, *arguments, "--out", str(out), *options))

        founder = node("founder", "bootstrap", "examples/tiny.yaml")
        address, peer_id = address_of(founder).split("/p2p/")
        before = resident(psutil.Process(founder.process.pid))

        async def pour() -> None:
            async with open_host(secrets.token_bytes(32), (), (), Counters()) as host:
                await host.connect(peer_id, (address,))
                (peer,) = host._host.get_connected_peers()
                stream = await host._host.new_stream(peer, [MANIFEST_PROTOCOL])
                await stream.write(encode_request(b""))
                await stream.read(1)
                await is_hung_up_on(host._host, [frame(DATA, 0, stream.muxed_stream.stream_id, PIECE)] * 3_000)

        async def come_and_go(times: int) -> None:
            async with open_host(secrets.token_bytes(32), (), (), Counters()) as host:
                for _ in range(times):
                    await host.connect(peer_id, (address,))
                    await host.drop(peer_id)

        async def besiege() -> None:
            with trio.fail_after(DEADLINE_S):
                await pour()
                async with trio.open_nursery() as visitors:
                    for _ in range(8):
                        visitors.start_soon(come_and_go, MAX_SLOTS // 8 + 2)

        trio.run(besiege)
        assert resident(psutil.Process(founder.process.pid)) - before < 32 * 2**20
        joined = node("joined", "join", address_of(founder))
        processes.until(lambda: bool(joined.history().latest and joined.history().latest.peers), joined, "a peer")
