"""The same attacks on the transport in pure Python, by hosts that keep to no rules."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, aclosing, asynccontextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from swarm.errors import PeerUnreachable
from swarm.net.bandwidth import Rates
from swarm.net.libp2p.transport import Libp2pTransport
from swarm.net.records.framing import encode_request, read_answer
from swarm.net.records.identity import Identity
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


def test_gossip_without_end_is_left_out_and_others_are_heard(start: Start) -> None:
    from libp2p.pubsub.pb.rpc_pb2 import RPC, Message

    a = start("founder")
    b = start("b", a.multiaddrs())
    meets(a, b)
    topic = a._member.run.topic
    a._session._host._pubsub._rates._at_once = 100.0  # type: ignore[union-attr]

    async def flood(host: Any, peer: Any) -> None:
        import trio

        rpc = RPC(publish=[Message(data=b"x", topicIDs=[topic], from_id=b"y", seqno=b"1")] * 1_000)
        rpc.subscriptions.append(RPC.SubOpts(subscribe=True, topicid="t" * 100_000))
        content = rpc.SerializeToString()
        length, prefix = len(content), bytearray()
        while length >= 0x80:
            prefix.append(length & 0x7F | 0x80)
            length >>= 7
        stream = await host.new_stream(peer, ["/meshsub/1.1.0"])
        await stream.write(bytes((*prefix, length)) + content)
        with trio.move_on_after(15):
            while not a.counters().get("gossip_flood"):
                await trio.sleep(0.05)

    attack(a, flood)
    until(lambda: a.counters().get("gossip_flood"), "the flood is counted")
    assert not [name for name in a._session._host._pubsub.peer_topics if len(name) > 256]  # type: ignore[union-attr]
    record = signed(b, b"still heard")
    b.publish(record)
    until(lambda: record in drained(a), "others are heard")


TOPIC = "swarm/run/groups"


def control_of(rpc: Any) -> tuple[Any, dict[str, int]]:
    """A router after the control part of an RPC by a stranger, and what was counted."""
    import trio
    from libp2p.peer.id import ID
    from libp2p.pubsub.pb.rpc_pb2 import Message
    from libp2p.pubsub.rpc_queue import RpcQueue
    from swarm.net.libp2p.gossip import GuardedRouter

    from swarm.net.counters import Counters

    stranger, counters = ID.from_base58(Identity.generate().peer_id), Counters()
    router = GuardedRouter(counters)
    router.mesh[TOPIC] = set()
    router.mcache.put(Message(data=bytes(1_000), topicIDs=[TOPIC], from_id=b"author", seqno=b"1"))
    router.dialled = []

    async def connect(peer: Any) -> None:
        router.dialled.append(peer)

    router.pubsub = SimpleNamespace(
        peer_queues={stranger: RpcQueue()},
        seen_messages=SimpleNamespace(has=lambda name: False),
        host=SimpleNamespace(connect=connect, get_peerstore=lambda: SimpleNamespace(peer_info=lambda peer_id: peer_id)),
        peers={},
    )
    trio.run(router.handle_rpc, rpc, stranger)
    return router, counters.snapshot()


def sent(router: Any) -> list[Any]:
    """What is queued for the stranger."""
    (queue,) = router.pubsub.peer_queues.values()
    return [*queue._queue._priority, *queue._queue._non_priority]


def test_a_message_that_is_wanted_a_thousand_times_is_sent_once() -> None:
    from libp2p.pubsub.pb.rpc_pb2 import RPC

    rpc = RPC()
    for _ in range(4):
        rpc.control.iwant.add(messageIDs=[b"author1".hex().encode()] * 1_000)
    router, counted = control_of(rpc)
    (answer,) = sent(router)
    assert len(answer.publish) == 1 and counted == {}
    rpc.control.iwant.add(messageIDs=[b"author1".hex().encode()] * 1_001)
    assert control_of(rpc)[1] == {"gossip_flood": 1}


def test_what_a_control_message_says_of_other_topics_is_not_kept() -> None:
    from libp2p.pubsub.pb.rpc_pb2 import RPC

    rpc = RPC()
    for number in range(1_000):
        rpc.control.prune.add(topicID=f"t{number}", backoff=2**31)
        rpc.control.graft.add(topicID=f"t{number}")
        rpc.control.ihave.add(topicID=f"t{number}", messageIDs=[b"ff"])
    router, counted = control_of(rpc)
    assert not (router.back_off or router.graft_flood_tracking or sent(router) or router.ihave_message_limits)
    assert counted == {"gossip_flood": 1}


def test_of_the_ids_that_a_peer_announces_so_many_are_asked_for() -> None:
    from libp2p.pubsub.pb.rpc_pb2 import RPC

    rpc = RPC()
    rpc.control.ihave.add(topicID=TOPIC, messageIDs=[f"{number:08x}".encode() for number in range(50_000)])
    router, counted = control_of(rpc)
    assert [len(each.messageIDs) for answer in sent(router) for each in answer.control.iwant] == [1_000]
    assert counted == {"gossip_flood": 1}


def test_a_peer_that_leaves_the_mesh_sends_nobody_elsewhere() -> None:
    from libp2p.pubsub.pb.rpc_pb2 import RPC

    rpc = RPC()
    prune = rpc.control.prune.add(topicID=TOPIC, backoff=60)
    prune.peers.add(peerID=b"somebody")
    router, counted = control_of(rpc)
    assert list(router.back_off) == [TOPIC] and router.dialled == [] and counted == {}


def test_control_messages_without_end_are_left_out() -> None:
    import trio
    from libp2p.peer.id import ID
    from libp2p.pubsub.pb.rpc_pb2 import RPC
    from swarm.net.libp2p.gossip import CONTROLS_AT_ONCE

    router, _ = control_of(RPC())
    router.graft_flood_tracking.clear()
    flooder = ID.from_base58(Identity.generate().peer_id)

    async def flood() -> None:
        for _ in range(int(2 * CONTROLS_AT_ONCE)):
            rpc = RPC()
            rpc.control.graft.add(topicID=TOPIC)
            await router.handle_rpc(rpc, flooder)

    trio.run(flood)
    assert router._counters.snapshot()["gossip_flood"] > 0


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


LOOPS = ("_dial", "_observe", "_join", "_receive_gossip", "_publish_outgoing")
UPKEEP = ("repair", "download", "exchange_peers")


def test_every_loop_may_raise_and_the_node_goes_on(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from swarm.net.libp2p.session import Session
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
    a = start("founder", before=victim.append)
    b = start("b", a.multiaddrs())
    until(lambda: set(raised) == {*LOOPS, *UPKEEP}, "every loop has raised")
    until(lambda: a.counters().get("loop_errors", 0) >= len(raised), "and was counted")
    meets(a, b)
    record = signed(b, b"after all that")
    b.publish(record)
    until(lambda: record in drained(a), "gossip arrives")
    assert a.counters().get("network_restarts", 0) == 0
