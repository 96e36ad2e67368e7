"""Strangers who take a live node's places, its daemon's memory, or its dials, and what others notice of it: nothing."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import psutil
import pytest

from swarm.errors import PeerUnreachable, TransportError
from swarm.net.records.envelope import encode_request
from swarm.net.records.identity import Identity
from swarm.net.records.repair import GIVE_PROTOCOL, HAVE_PROTOCOL
from swarm.net.records.wire import open_peer_record, seal_peer_record
from swarm.net.services.requests import MANIFEST_PROTOCOL, PEERS_PROTOCOL, answer_peers
from swarm.types import MAX_MULTIADDRS, PeerRecord
from tests.net.records import until
from tests.nodes.processes import LOOPBACK, Swarm, address_of, is_daemon, swarm

from .stranger import Stranger

pytestmark = [pytest.mark.slow, pytest.mark.network]

IDLE_STREAMS = 60
SERVICES = (MANIFEST_PROTOCOL, PEERS_PROTOCOL, GIVE_PROTOCOL, HAVE_PROTOCOL)
PING = "/ipfs/ping/1.0.0"
DAEMON_BYTES = 2**27


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory, victims: Callable[..., Swarm]) -> Swarm:
    out = tmp_path_factory.mktemp("bootstrap")
    return victims(out, "bootstrap", "examples/tiny.yaml", f"--network.daemon_bytes={DAEMON_BYTES}")


def p2pd(node: Swarm) -> psutil.Process | None:
    """The network daemon of a node; None while it is started anew."""
    return next((process for process in node.tree() if process.is_running() and is_daemon(process)), None)


def test_identities_with_idle_streams_keep_nobody_from_the_services(
    bootstrap: Swarm, strangers: Callable[..., Stranger]
) -> None:
    address = address_of(bootstrap)
    silent, honest = [strangers("silent-0"), strangers("silent-1")], strangers("honest")
    (victim,) = honest.connect(address)
    opened: list[str] = []

    async def hold(stranger: Stranger, number: int) -> None:
        while True:
            with suppress(TransportError, OSError):
                reader, writer = await stranger.daemon.open_stream(victim, SERVICES[number % len(SERVICES)])
                opened.append(stranger.peer_id)
                # Nothing, or half a header.
                writer.write(b"\0\0" * (number % 2))
                await reader.read(1)
                writer.close()
            await asyncio.sleep(0.2)

    async def besiege(stranger: Stranger) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(hold(stranger, number)) for number in range(IDLE_STREAMS)]

    sieges = []
    for stranger in silent:
        stranger.connect(address)
        sieges.append((stranger, stranger.run(besiege(stranger))))
    until(lambda: len(opened) >= len(silent) * IDLE_STREAMS, "as many streams are open")
    answers = [_ask(honest, victim) for _ in range(36)]

    async def end(tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    for stranger, tasks in sieges:
        stranger.run(end(tasks))
    assert [bool(answer) for answer in answers] == [True] * 36


def _ask(stranger: Stranger, victim: str) -> bytes:
    try:
        return stranger.request(victim, MANIFEST_PROTOCOL, b"")
    except PeerUnreachable:
        return b""


def test_a_flood_of_requests_is_refused_and_others_are_answered(
    bootstrap: Swarm, strangers: Callable[..., Stranger]
) -> None:
    flooder, honest = strangers("flooder"), strangers("honest-2")
    flooder.connect(address_of(bootstrap))
    (victim,) = honest.connect(address_of(bootstrap))

    async def ask() -> bytes:
        reader, writer = await flooder.daemon.open_stream(victim, HAVE_PROTOCOL)
        try:
            writer.write(encode_request(b"\x91\xcb\x40\x4e\0\0\0\0\0\0"))
            async with asyncio.timeout(10.0):
                return await reader.read(2**16)
        finally:
            writer.close()

    async def flood() -> bool:
        for _ in range(500):
            answers = await asyncio.gather(*(ask() for _ in range(12)), return_exceptions=True)
            if any(isinstance(answer, bytes) and b"busy" in answer for answer in answers):
                return True
        return False

    assert flooder.run(flood(), 600.0), "more than a peer may ask"
    assert all(_ask(honest, victim) for _ in range(36))


def test_streams_without_end_cost_the_daemon_its_memory_but_not_the_node(
    bootstrap: Swarm, strangers: Callable[..., Stranger]
) -> None:
    """The daemon itself limits no streams: 48,000 of them took it from 45 to 768 MB."""
    stranger = strangers("pinger")
    (victim,) = stranger.connect(address_of(bootstrap))
    before = p2pd(bootstrap)
    assert before is not None
    peak = 0

    async def hold(count: int) -> None:
        opened = (stranger.daemon.open_stream(victim, PING) for _ in range(count))
        held.extend(found for found in await asyncio.gather(*opened, return_exceptions=True))

    held: list[object] = []
    for _ in range(80):
        stranger.run(hold(100))
        with suppress(psutil.Error):
            daemon = p2pd(bootstrap)
            peak = max(peak, daemon.memory_info().rss if daemon else 0)
        if not before.is_running():
            break
    until(lambda: not before.is_running(), "the daemon is started anew")
    assert peak < 2 * DAEMON_BYTES
    until(lambda: p2pd(bootstrap), "a daemon")
    newcomer = strangers("newcomer")

    def answered() -> bool:
        try:
            return bool(_ask(newcomer, newcomer.connect(address_of(bootstrap))[0]))
        except PeerUnreachable:
            return False

    until(answered, "the node answers where it was")
    assert bootstrap.process.poll() is None


@pytest.fixture
def third_party() -> Iterator[Callable[[], int]]:
    """A machine that has nothing to do with the run: how many connections were made to it."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=512)) as server:
        server.setblocking(False)
        made = 0

        def count() -> int:
            nonlocal made
            with suppress(BlockingIOError):
                while True:
                    server.accept()[0].close()
                    made += 1
            return made

        count.port = server.getsockname()[1]  # type: ignore[attr-defined]
        yield count


def test_records_of_peers_that_are_not_make_no_node_dial_a_machine_of_its_net(
    tmp_path: Path, strangers: Callable[..., Stranger], third_party: Callable[[], int]
) -> None:
    """The victim's user has named a public address; records lead to a service on its own machine."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    out = tmp_path / "public"
    public = f"--network.announce=/ip4/8.8.8.8/tcp/{port}"
    listen = f"--network.listen=/ip4/127.0.0.1/tcp/{port}"
    role = ("bootstrap", "examples/tiny.yaml", "--out", str(out), *LOOPBACK, listen, public)
    with swarm(out, *role) as victim:
        liar = strangers("liar")
        peer_id = address_of(victim).rpartition("/")[2]
        until(lambda: _connects(liar, f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer_id}"), "the victim is up")
        run_id = liar.manifest(peer_id).run_id
        target = f"/ip4/127.0.0.1/tcp/{third_party.port}"  # type: ignore[attr-defined]
        records = [_fake(run_id, target) for _ in range(40)]
        asked: list[str] = []

        def answer(remote: str, request: bytes) -> bytes:
            asked.append(remote)
            return answer_peers(records)

        liar.serve(PEERS_PROTOCOL, answer)
        liar.follow(run_id)
        until(lambda: len(asked) >= 2, "the victim has learned of them")
        until_at = time.monotonic() + 5.0
        until(lambda: time.monotonic() > until_at or third_party(), "it dials, or there was time to")
        assert third_party() == 0


def test_strangers_learn_no_address_of_the_network_that_a_public_member_is_in(
    tmp_path: Path, strangers: Callable[..., Stranger]
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    inside = (f"/ip4/192.168.1.5/tcp/{port}", f"/ip4/172.17.0.1/tcp/{port}", f"/ip6/fd00::5/tcp/{port}")
    announced = ", ".join((f"/ip4/8.8.8.8/tcp/{port}", *inside))
    out = tmp_path / "at-home"
    role = ("bootstrap", "examples/tiny.yaml", "--out", str(out), *LOOPBACK)
    listen = f"--network.listen=/ip4/127.0.0.1/tcp/{port}"
    with swarm(out, *role, listen, f"--network.announce=[{announced}]") as victim:
        peer_id = address_of(victim).rpartition("/")[2]
        curious = strangers("curious")
        until(lambda: _connects(curious, f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer_id}"), "the victim is up")
        run_id = curious.manifest(peer_id).run_id
        answer = curious.request(peer_id, PEERS_PROTOCOL, b"")
        (record,) = [open_peer_record(sealed, run_id) for sealed in msgspec.msgpack.decode(answer, type=list[bytes])]
        assert record.multiaddrs == (f"/ip4/8.8.8.8/tcp/{port}/p2p/{peer_id}",)


def _connects(stranger: Stranger, address: str) -> bool:
    try:
        return bool(stranger.connect(address))
    except PeerUnreachable:
        return False


def _fake(run_id: str, target: str) -> bytes:
    identity = Identity.generate()
    addresses = (f"{target}/p2p/{identity.peer_id}",) * MAX_MULTIADDRS
    record = PeerRecord(run_id, identity.peer_id, addresses, "", (), "peer", "", time.time() + 240.0)
    return seal_peer_record(identity, record)
