"""The same attacks on the transport in pure Python, by hosts that keep to no rules."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest

from swarm.errors import PeerUnreachable
from swarm.net.bandwidth import Rates
from swarm.net.libp2p.transport import Libp2pTransport
from swarm.net.records.framing import encode_request, read_answer
from swarm.net.records.repair import GIVE_PROTOCOL, HAVE_PROTOCOL
from swarm.net.services.manifest import MANIFEST_PROTOCOL
from swarm.net.services.peer_exchange import PEERS_PROTOCOL

from .records import drained, signed, until
from .test_libp2p import attack, two_hosts

pytestmark = [pytest.mark.network, pytest.mark.libp2p]

Start = Callable[..., Libp2pTransport]


def meets(a: Libp2pTransport, b: Libp2pTransport) -> None:
    until(lambda: a.status().connected and b.status().connected, "both connect")


async def ask(host: Any, peer: Any, protocol: str = MANIFEST_PROTOCOL) -> str:
    """How an answer begins, or why there was none."""
    from swarm.net.libp2p.host import _read_exactly

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
    a._session._host.admission._peers = Rates(1.0, 20.0)  # type: ignore[union-attr]

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

    from swarm.net.libp2p.host import CLOSE_TIMEOUT_S

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

    from swarm.net.libp2p import host as host_module

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

    from swarm.net.libp2p import session

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
    from swarm.net.libp2p.session import Session
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
