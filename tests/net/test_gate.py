"""What a gate lets a process send, and that a daemon behind it is never worse off than without one."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from swarm.errors import PeerUnreachable
from swarm.net.addresses.dial import tcp_end
from swarm.net.addresses.nat import nat_arguments
from swarm.net.config import NetworkSettings
from swarm.net.hivemind import gate as gate_module
from swarm.net.hivemind.daemon import Child, Daemon
from swarm.net.hivemind.gate import Destination, Gate, routers
from swarm.net.hivemind.transport import UNWATCHED, HivemindTransport

from .gates import impossible
from .records import make_identity

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(bool(impossible()), reason=f"a node cannot watch what its daemon dials: {impossible()}"),
]

SENDS = """
import errno, socket, sys
def outcome(send):
    try:
        return send() and "passed"
    except OSError as error:
        return errno.errorcode[error.errno]
kind, family, host, port = sys.argv[1], getattr(socket, sys.argv[2]), sys.argv[3], int(sys.argv[4])
to = host if family == socket.AF_UNIX else (host, port)
with socket.socket(family, socket.SOCK_DGRAM if "send" in kind else socket.SOCK_STREAM) as end:
    print(outcome({
        "connect": lambda: end.connect(to) is None,
        "sendto": lambda: end.sendto(b"!", to),
        "sendmsg": lambda: end.sendmsg([b"!"], [], 0, to),
    }[kind]))
"""
LISTEN = ("/ip4/127.0.0.1/tcp/0",)
NAT = nat_arguments(NetworkSettings(nat_port_map=False))


def sent(gate: Gate, *what: str, to: Sequence[Destination] = ()) -> str:
    async def run() -> str:
        process = Child(gate.spawn([sys.executable, "-c", SENDS, *what], os.environ))
        await process.attach()
        with gate.to(to):
            answer = (await process.output.read()).decode().strip()
        await process.wait()
        process.close()
        gate.stop()
        return answer

    return asyncio.run(run())


def closed(*, datagrams: bool = False, maps_ports: bool = False) -> Gate:
    return Gate(datagrams=datagrams, maps_ports=maps_ports)


@pytest.mark.parametrize(
    ("family", "host", "other"), [("AF_INET", "127.0.0.1", "127.0.0.2"), ("AF_INET6", "::1", "127.0.0.1")]
)
def test_a_process_connects_where_it_is_let_through_and_nowhere_else(family: str, host: str, other: str) -> None:
    with socket.create_server((host, 0), family=getattr(socket, family)) as server:
        port = server.getsockname()[1]
        where = ("connect", family, host, str(port))
        assert sent(closed(), *where, to=[(host, port)]) == "passed"
        refused: list[None] = []
        gate = closed()
        gate.on_refused = lambda: refused.append(None)
        assert sent(gate, *where, to=[(other, port), (host, port + 1)]) == "EACCES"
        assert len(refused) == 1
        if family == "AF_INET":
            assert sent(closed(), "connect", "AF_INET6", f"::ffff:{host}", str(port), to=[(host, port)]) == "passed"
            assert sent(closed(), "connect", "AF_INET6", f"::ffff:{host}", str(port)) == "EACCES"


@pytest.mark.parametrize("kind", ["sendto", "sendmsg"])
def test_datagrams_too_unless_they_pass(kind: str) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as taking:
        taking.bind(("127.0.0.1", 0))
        where = (kind, "AF_INET", "127.0.0.1", str(taking.getsockname()[1]))
        assert sent(closed(), *where) == "EACCES"
        assert sent(closed(), *where, to=[taking.getsockname()]) == "passed"
        assert sent(closed(datagrams=True), *where) == "passed"


def test_sockets_of_this_machine_are_no_dials(tmp_path: Path) -> None:
    """The daemon opens one for each stream that a peer opens."""
    for name in ("s", "s" * 60):
        path = Path("/tmp") / f"{os.getpid()}-{name}"
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(path))
                server.listen()
                assert sent(closed(), "connect", "AF_UNIX", str(path), "0") == "passed"
        finally:
            path.unlink()


def test_a_node_that_wants_a_port_may_ask_its_routers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = "Iface Destination Gateway Flags\neth0 00000000 0300007F 0003\neth0 0007A8C0 00000000 0001\n"
    monkeypatch.setattr(gate_module, "ROUTES", tmp_path / "route")
    assert routers() == frozenset()
    gate_module.ROUTES.write_text(table)
    assert routers() == {"127.0.0.3"}
    with socket.create_server(("127.0.0.3", 0)) as router:
        where = ("connect", "AF_INET", "127.0.0.3", str(router.getsockname()[1]))
        assert sent(closed(maps_ports=True), *where) == "passed"
        assert sent(closed(), *where) == "EACCES"


def test_what_a_multiaddr_connects_to() -> None:
    assert tcp_end("/ip4/10.0.0.1/tcp/4001/p2p/RELAY/p2p-circuit") == ("10.0.0.1", 4001)
    assert tcp_end("/ip6/::ffff:10.0.0.1/tcp/1") == ("10.0.0.1", 1) and tcp_end("/ip6/2600::0:1/tcp/1") == (
        "2600::1",
        1,
    )
    assert tcp_end("/ip4/10.0.0.1/udp/4001/quic-v1") is None and tcp_end("/dns4/a.example/tcp/1") is None


def test_the_daemon_goes_on_while_nobody_decides_and_when_nobody_ever_will() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        here, there, guest = [await Daemon.start(listen=LISTEN, nat=NAT) for _ in range(3)]
        try:
            addresses = await there.addresses()
            loop.remove_reader(here.gate._listener)
            dial = asyncio.create_task(here.connect(there.peer_id, addresses))
            await asyncio.sleep(0.5)
            await guest.connect(here.peer_id, await here.addresses())
            assert not dial.done() and await here.connected() == {guest.peer_id}
            loop.add_reader(here.gate._listener, here.gate._decide)
            await dial
            assert await here.connected() == {guest.peer_id, there.peer_id}
            await there.disconnect(here.peer_id)
            while there.peer_id in await here.connected():  # until it is heard here, a dial has nothing to do
                await asyncio.sleep(0.05)
            here.gate.stop()
            with pytest.raises(PeerUnreachable, match="not implemented"):
                await here.connect(there.peer_id, addresses)
            assert await here.connected() == {guest.peer_id}
        finally:
            for daemon in (here, there, guest):
                await daemon.stop()

    asyncio.run(run())


def test_daemons_leave_no_descriptors() -> None:
    def open_ones() -> int:
        gc.collect()  # event loops and sockets that earlier tests left close theirs when they are collected
        return len(os.listdir("/proc/self/fd"))

    async def run() -> None:
        daemon = await Daemon.start(listen=LISTEN, nat=NAT)
        assert not daemon.gate.problem
        await daemon.stop()

    async def runs() -> None:
        await run()  # what the first one opens for the whole process may stay
        await asyncio.sleep(0.2)
        before = open_ones()
        for _ in range(2):
            await run()
        async with asyncio.timeout(30):
            while open_ones() > before:
                await asyncio.sleep(0.05)

    asyncio.run(runs())


def test_a_node_that_listens_on_tcp_dials_by_tcp() -> None:
    async def run() -> None:
        here = await Daemon.start(listen=LISTEN, nat=NAT)
        there = await Daemon.start(listen=("/ip4/127.0.0.1/udp/0/quic-v1",), nat=NAT)
        try:
            with pytest.raises(PeerUnreachable, match="no address of QUIC in network.listen"):
                await here.connect(there.peer_id, await there.addresses())
            await there.connect(here.peer_id, await here.addresses())
            assert await here.connected() == {there.peer_id}
        finally:
            await here.stop()
            await there.stop()

    asyncio.run(run())


def test_names_are_looked_up_for_the_daemon() -> None:
    async def run() -> None:
        here, there = [await Daemon.start(listen=LISTEN, nat=NAT) for _ in range(2)]
        try:
            (address,) = await there.addresses()
            await here.connect(there.peer_id, [address.replace("/ip4/127.0.0.1", "/dns4/localhost")])
            assert await here.connected() == {there.peer_id}
        finally:
            await here.stop()
            await there.stop()

    asyncio.run(run())


def test_where_the_kernel_refuses_a_node_says_so_once_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(program: bytes, flags: int) -> int:
        raise OSError("Function not implemented")

    first = HivemindTransport(NetworkSettings(listen=LISTEN, nat_port_map=False), make_identity(tmp_path, "first"))
    first.start()
    monkeypatch.setattr(gate_module.kernel, "install", refuse)
    settings = NetworkSettings(listen=LISTEN, nat_port_map=False, bootstrap=tuple(first.multiaddrs()), retry_s=0.2)
    second = HivemindTransport(settings, make_identity(tmp_path, "second"))
    try:
        with caplog.at_level(logging.WARNING):
            second.start()
        assert [record.getMessage() for record in caplog.records] == [f"{UNWATCHED}: Function not implemented"]
        assert second.multiaddrs()
    finally:
        second.close()
        first.close()
