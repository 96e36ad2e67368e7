"""Strangers who would have a node's network daemon dial third parties, or keep what they say."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from hivemind.p2p import PeerID
from hivemind.proto import p2pd_pb2

from swarm.errors import PeerUnreachable, TransportError
from swarm.net.addresses.listening import with_port
from swarm.net.addresses.nat import nat_arguments
from swarm.net.config import NetworkSettings
from swarm.net.hivemind.control import Control, packed
from swarm.net.hivemind.daemon import Daemon
from swarm.net.records.identity import Identity
from swarm.net.services import streams
from swarm.net.services.requests import MANIFEST_PROTOCOL
from swarm.net.services.streams import StreamAdmission
from swarm.reasons import Reason
from tests.net.gates import impossible
from tests.nodes.processes import Swarm, address_of

from .stranger import Stranger

pytestmark = [pytest.mark.slow, pytest.mark.network]

DIALS_OR_KEEPS = (
    *("/meshsub/1.1.0", "/meshsub/1.0.0", "/floodsub/1.0.0", "/ipfs/kad/1.0.0", "/libp2p/fetch/0.0.1"),
    *("/libp2p/circuit/relay/0.1.0", "/libp2p/autonat/2/dial-request", "/libp2p/autonat/1.0.0", "/libp2p/dcutr"),
)
BEHIND_A_GATE = pytest.mark.skipif(
    bool(impossible()), reason=f"a node cannot watch what its daemon dials: {impossible()}"
)
LIAR = (with_port("/ip4/127.0.0.1/tcp/0"),)
NAT = nat_arguments(NetworkSettings(nat_port_map=False))


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory, victims: Callable[..., Swarm]) -> Swarm:
    return victims(tmp_path_factory.mktemp("victim"), "bootstrap", "examples/tiny.yaml")


@contextmanager
def third_party() -> Iterator[tuple[int, list[str]]]:
    """A port at every address of this machine, and the addresses at which somebody has connected or sent to it."""
    hits: list[str] = []
    with socket.create_server(("0.0.0.0", 0)) as listening, socket.socket(type=socket.SOCK_DGRAM) as taking:
        taking.bind(listening.getsockname())

        def accept() -> None:
            with suppress(OSError):
                while True:
                    link, _ = listening.accept()
                    hits.append(link.getsockname()[0])
                    link.close()

        def take() -> None:
            with suppress(OSError):
                while True:
                    taking.recv(1)
                    hits.append("by datagram")

        for each in (accept, take):
            threading.Thread(target=each, daemon=True).start()
        yield listening.getsockname()[1], hits
        listening.shutdown(socket.SHUT_RDWR)


async def meet(liar: Daemon, victim: Daemon) -> None:
    """The liar connects, and the victim hears all that it claims."""
    await liar.connect(victim.peer_id, await victim.addresses())
    with pytest.raises(PeerUnreachable, match="not supported"):
        await victim.call(liar.peer_id, "/test/nothing", b"", 10.0)


async def hang_up(liar: Daemon, victim: Daemon) -> None:
    """The liar leaves, until the victim knows."""
    await liar.disconnect(victim.peer_id)
    async with asyncio.timeout(30.0):
        while liar.peer_id in await victim.connected():
            await asyncio.sleep(0.01)


def test_no_protocol_is_spoken_by_which_strangers_have_the_daemon_dial_or_keep_anything(
    victim: Swarm, strangers: Callable[..., Stranger]
) -> None:
    """GossipSub's PRUNE with signed addresses had it make 468 connections per second, kad's records took 467 MB."""
    stranger = strangers("speaker")
    (peer_id,) = stranger.connect(address_of(victim))
    for protocol in DIALS_OR_KEEPS:
        with pytest.raises(TransportError, match="protocols not supported"):
            stranger.open_stream(peer_id, protocol)
    assert stranger.request(peer_id, MANIFEST_PROTOCOL, b"")


def test_a_node_that_is_no_relay_carries_nothing_for_strangers() -> None:
    """The daemon granted two minutes and 128 KiB a circuit to anybody, whatever its arguments said."""

    async def run() -> None:
        here = ("/ip4/127.0.0.1/tcp/0",)
        victim, one, other = [await Daemon.start(listen=here, nat=NAT) for _ in range(3)]
        try:
            addresses = await victim.addresses()
            for stranger in (one, other):
                await stranger.connect(victim.peer_id, addresses)
            with pytest.raises(PeerUnreachable, match="granted no reservation"):
                await one.circuit_limits(victim.peer_id)
            circuits = [f"{address}/p2p/{victim.peer_id}/p2p-circuit" for address in addresses]
            with pytest.raises(PeerUnreachable, match="p2p-circuit"):
                await other.connect(one.peer_id, circuits)
            assert one.peer_id not in await other.connected()
        finally:
            for each in (victim, one, other):
                await each.stop()

    asyncio.run(run())


def test_a_peer_that_has_left_is_not_dialled_where_it_claimed_to_be() -> None:
    async def run(port: int, hits: list[str]) -> None:
        claimed = tuple(f"/ip4/127.0.1.{number}/tcp/{port}" for number in range(1, 100))
        victim = await Daemon.start(listen=("/ip4/127.0.0.1/tcp/0",), nat=NAT)
        liar = await Daemon.start(listen=("/ip4/127.0.0.1/tcp/0",), announce=claimed, nat=NAT)
        try:
            await meet(liar, victim)
            await hang_up(liar, victim)
            for _ in range(5):
                with pytest.raises(PeerUnreachable, match="not connected"):
                    await victim.call(liar.peer_id, "/test/nothing", b"", 10.0)
            assert hits == []
        finally:
            await liar.stop()
            await victim.stop()

    with third_party() as (port, hits):
        asyncio.run(run(port, hits))


@BEHIND_A_GATE
def test_a_peer_is_dialled_where_the_node_wants_and_nowhere_else() -> None:
    """One dial made 100 connections: to the address that the node chose, and to all those that the peer had claimed."""

    async def run(port: int, hits: list[str]) -> None:
        claimed = (
            *(f"/ip4/127.0.1.{number}/tcp/{port}" for number in range(1, 100)),
            *(f"/ip4/127.0.1.{number}/udp/{port}/quic-v1" for number in range(1, 100)),
        )
        victim = await Daemon.start(listen=("/ip4/127.0.0.1/tcp/0",), nat=NAT)
        liar = await Daemon.start(listen=LIAR, announce=claimed, nat=NAT)
        refused: list[None] = []
        victim.gate.on_refused = lambda: refused.append(None)
        try:
            await meet(liar, victim)
            for _ in range(2):
                await hang_up(liar, victim)
                await victim.connect(liar.peer_id, LIAR)
            assert await victim.connected() == {liar.peer_id}
            assert hits == []
            assert len(refused) >= 99
        finally:
            await liar.stop()
            await victim.stop()

    with third_party() as (port, hits):
        asyncio.run(run(port, hits))


@BEHIND_A_GATE
def test_whoever_has_taken_over_the_directory_has_the_daemon_dial_nobody() -> None:
    """It holds the control socket."""

    async def run(port: int, hits: list[str]) -> None:
        victim = await Daemon.start(listen=("/ip4/127.0.0.1/tcp/0",), nat=NAT)
        taken_over = Control(victim.control)
        try:
            for number in range(1, 10):
                target = p2pd_pb2.ConnectRequest(
                    peer=PeerID.from_base58(Identity.generate().peer_id).to_bytes(),
                    addrs=[packed(f"/ip4/127.0.1.{number}/tcp/{port}"), packed(f"/ip4/127.0.1.1/udp/{port}/quic-v1")],
                )
                with pytest.raises(TransportError, match="permission denied"):
                    await taken_over.ask(p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=target))
            assert hits == []
        finally:
            await victim.stop()

    with third_party() as (port, hits):
        asyncio.run(run(port, hits))


def test_what_a_peer_pushes_of_itself_is_not_kept_and_counts_as_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 messages of 8 KB, full of names of protocols, took the daemon 100 MB, kept when the peer had left."""
    monkeypatch.setattr(streams, "REQUESTS_AT_ONCE", 100.0)
    monkeypatch.setattr(streams, "REQUESTS_PER_S", 1.0)

    async def run() -> None:
        victim, liar = [await Daemon.start(listen=("/ip4/127.0.0.1/tcp/0",), nat=NAT) for _ in range(2)]
        charged: list[tuple[str, Reason]] = []
        victim.incoming.gatekeeper.admission = StreamAdmission(
            lambda peer_id, reason: charged.append((peer_id, reason))
        )
        process = psutil.Process(victim.pid)
        turns = asyncio.Semaphore(32)

        async def push() -> None:
            names = b"".join(b"\x1a\x19/" + random.randbytes(12).hex().encode() for _ in range(290))
            async with turns:
                reader, writer = await liar.open_stream(victim.peer_id, "/ipfs/id/push/1.0.0")
                writer.write(bytes([len(names) % 128 + 128, len(names) // 128]) + names)
                with suppress(ConnectionError):
                    writer.write_eof()
                    await reader.read(1)
                writer.close()

        try:
            await liar.connect(victim.peer_id, await victim.addresses())
            before = process.memory_info().rss
            await asyncio.gather(*(push() for _ in range(1_000)))
            assert process.memory_info().rss - before < 60e6
            assert (liar.peer_id, Reason.FLOOD) in charged
        finally:
            await liar.stop()
            await victim.stop()

    asyncio.run(run())


def test_strangers_who_come_claim_others_addresses_and_go_send_a_node_nowhere(victim: Swarm, tmp_path: Path) -> None:
    """They say that they take part, so that the node wants to greet, follow and repair from them."""
    with third_party() as (port, hits):
        claimed = tuple(f"/ip4/127.0.1.{number}/tcp/{port}" for number in range(1, 50))
        for number in range(5):
            liar = Stranger(tmp_path, f"liar-{number}", announce=claimed)
            try:
                (peer_id,) = liar.connect(address_of(victim))
                run_id = liar.manifest(peer_id).run_id
                liar.follow(run_id)
                liar.publish(run_id, b"junk")
            finally:
                liar.close()
        time.sleep(3.0)
        assert hits == []
