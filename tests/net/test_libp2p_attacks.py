"""The same attacks on the transport in pure Python, by hosts that keep to no rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
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
from .test_libp2p import attack

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
