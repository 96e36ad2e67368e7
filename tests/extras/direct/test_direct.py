"""Direct links: sockets between this process's two ends, with the network replaced by a call."""

from __future__ import annotations

import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from typing import cast

import msgspec
import pytest

import swarm.extras.direct.server as server_module
from swarm.errors import PeerUnreachable
from swarm.extras.direct.client import FIRST_PAUSE_S, DirectClient
from swarm.extras.direct.server import MAX_LINKS, DirectServer
from swarm.extras.direct.tickets import LEAST_PORT, LIFE_S, MAX_TICKETS, Secrets, Ticket, asking_context
from swarm.net.guard import Counters
from swarm.protocols import StreamHandler, Transport
from tests.net.records import until
from tests.net.test_repair import Clock

HERE = "/ip4/127.0.0.1/tcp/4001"
PROTOCOL = "/swarm/test/direct/1"
CONTENT = random.Random(0).randbytes(3_000_001)


class Network:
    """What a client needs of a transport."""

    def __init__(self, answer: Callable[[bytes], bytes], seen_at: tuple[str, ...] = (HERE,)) -> None:
        self.answer = answer
        self.seen_at = seen_at
        self.num_asked = 0

    def observed(self, peer_id: str) -> tuple[str, ...]:
        return self.seen_at

    def request(self, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
        assert protocol == PROTOCOL
        self.num_asked += 1
        return self.answer(payload)


def serving(handler: StreamHandler, clock: Callable[[], float] = time.monotonic) -> tuple[DirectServer, Counters]:
    counters = Counters()
    return DirectServer(handler, (HERE,), 0, counters, clock), counters


def ticket_of(server: DirectServer) -> Callable[[bytes], bytes]:
    return lambda payload: msgspec.msgpack.encode(server.ticket("asker", payload))


def client_of(network: Network, clock: Callable[[], float] = time.monotonic) -> tuple[DirectClient, Counters]:
    counters = Counters()
    return DirectClient(cast(Transport, network), PROTOCOL, counters, clock), counters


def answer_of(
    client: DirectClient, timeout_s: float = 5.0, max_bytes: int = len(CONTENT)
) -> Generator[bytes, None, None]:
    pieces = client.stream("giver", b"all", timeout_s, max_bytes)
    assert pieces is not None
    return pieces


def content(remote: str, request: bytes) -> Iterator[bytes | None]:
    assert (remote, request) == ("asker", b"all")
    for start in range(0, len(CONTENT), 700_000):
        yield None
        yield CONTENT[start : start + 700_000]


def never(remote: str, request: bytes) -> Iterator[bytes | None]:
    while True:
        yield None


def connected(ticket: Ticket) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", ticket.port), 5.0)
    return asking_context().wrap_socket(plain)


def said(link: socket.socket) -> bytes:
    """Bytes until the other end hangs up."""
    link.settimeout(10.0)
    found = b""
    with suppress(ConnectionError, ssl.SSLError):
        while piece := link.recv(2**16):
            found += piece
    return found


def test_an_answer_arrives_whole_and_in_order() -> None:
    server, served = serving(content)
    client, _ = client_of(Network(ticket_of(server)))
    with closing(server):
        for _ in range(2):
            assert b"".join(answer_of(client)) == CONTENT
        assert served.snapshot() == {"direct_links": 2}


def test_no_more_is_taken_than_was_allowed() -> None:
    server, _ = serving(content)
    client, _ = client_of(Network(ticket_of(server)))
    with closing(server):
        assert b"".join(answer_of(client, max_bytes=1_000)) == CONTENT[:1_000]


def test_whoever_closes_the_answer_frees_its_handler() -> None:
    ended = threading.Event()

    def waiting(remote: str, request: bytes) -> Iterator[bytes | None]:
        try:
            yield b"first"
            while True:
                yield None
        finally:
            ended.set()

    server, _ = serving(waiting)
    client, _ = client_of(Network(ticket_of(server)))
    with closing(server):
        pieces = answer_of(client, max_bytes=1_000)
        assert next(pieces) == b"first"
        pieces.close()
        assert ended.wait(10.0)


def test_silence_is_told_as_the_network_does() -> None:
    server, _ = serving(never)
    client, counters = client_of(Network(ticket_of(server)))
    with closing(server):
        pieces = answer_of(client, 0.2, 1_000)
        with pytest.raises(PeerUnreachable, match="broke"):
            next(pieces)
    assert counters.snapshot() == {"direct_failures": 1}


@pytest.mark.parametrize(
    "seen_at",
    [(), ("/ip4/1.2.3.4/tcp/1/p2p/relay/p2p-circuit",), ("/dns4/somewhere/tcp/1",), ("/ip4",)],
    ids=["not connected", "through a relay", "a name", "cut short"],
)
def test_a_peer_that_is_not_seen_itself_is_not_asked(seen_at: tuple[str, ...]) -> None:
    network = Network(lambda payload: b"", seen_at)
    client, _ = client_of(network)
    assert client.stream("giver", b"all", 5.0, 10) is None
    assert network.num_asked == 0


def unreachable(payload: bytes) -> bytes:
    raise PeerUnreachable("it has none")


def with_port(port: int) -> Callable[[bytes], bytes]:
    return lambda payload: msgspec.msgpack.encode((port, bytes(32), bytes(32)))


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize(
    "answer",
    [
        unreachable,
        lambda payload: b"",
        lambda payload: b"\xc1" * 100,
        lambda payload: b"\x91" * 50_000,
        lambda payload: msgspec.msgpack.encode((9_999, bytes(32), bytes(31))),
        lambda payload: msgspec.msgpack.encode((9_999, bytes(2**20), bytes(32))),
        with_port(22),
        with_port(65_536),
        with_port(closed_port()),
    ],
    ids=["none", "empty", "junk", "nested", "short", "long", "a service's port", "no port", "closed"],
)
def test_without_a_link_the_network_is_used_and_the_peer_left_alone_for_a_while(
    answer: Callable[[bytes], bytes],
) -> None:
    clock, network = Clock(), Network(answer)
    client, counters = client_of(network, clock)
    for _ in range(3):
        assert client.stream("giver", b"all", 5.0, 10) is None
    assert network.num_asked == 1
    clock.now += FIRST_PAUSE_S
    assert client.stream("giver", b"all", 5.0, 10) is None
    assert network.num_asked == 2
    assert counters.snapshot() == {"direct_failures": 2}


def test_a_port_that_accepts_and_says_nothing_costs_a_second() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        client, counters = client_of(Network(with_port(mute.getsockname()[1])))
        assert client.stream("giver", b"all", 5.0, 10) is None
        assert counters.snapshot() == {"direct_failures": 1}


def test_a_server_with_another_certificate_never_gets_the_secret() -> None:
    """Somebody between the two, or a ticket that names another's port."""
    server, _ = serving(content)
    other, heard = serving(content)
    with closing(server), closing(other):
        theirs = other.ticket("asker", b"all")
        ours = server.ticket("asker", b"all")
        mixed = Ticket(theirs.port, ours.certificate, theirs.secret)
        client, _ = client_of(Network(lambda payload: msgspec.msgpack.encode(mixed)))
        assert client.stream("giver", b"all", 5.0, 10) is None
        with connected(theirs) as link:  # its secret was not used
            link.sendall(theirs.secret)
            assert said(link) == CONTENT
        until(lambda: heard.snapshot().get("direct_broken_off") == 1, "the first link has ended")


def test_a_secret_is_good_once_for_its_own_peer_and_request() -> None:
    server, counters = serving(content)
    with closing(server):
        ticket = server.ticket("asker", b"all")
        with connected(ticket) as link:
            link.sendall(ticket.secret)
            assert said(link) == CONTENT
        again = server.ticket("asker", b"all")  # lets connections in
        with connected(again) as link:
            link.sendall(ticket.secret)
            assert said(link) == b""
        until(lambda: counters.snapshot() == {"direct_links": 1, "direct_broken_off": 1}, "refused")


def test_without_a_ticket_out_nobody_gets_as_far_as_a_handshake() -> None:
    clock = Clock()
    server, counters = serving(content, clock)
    with closing(server):
        ticket = server.ticket("asker", b"all")
        clock.now += LIFE_S
        with pytest.raises((ConnectionError, ssl.SSLError)):
            connected(ticket)
        assert counters.snapshot() == {"direct_turned_away": 1}


def test_mute_connections_are_bounded_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "INTRODUCTION_S", 1.0)
    server, counters = serving(content)
    with closing(server):
        port = server.ticket("asker", b"all").port
        mute = [socket.create_connection(("127.0.0.1", port)) for _ in range(MAX_LINKS)]
        try:
            until(lambda: counters.snapshot().get("direct_broken_off") == MAX_LINKS, "all end")
        finally:
            for each in mute:
                each.close()
        client, _ = client_of(Network(ticket_of(server)))
        assert b"".join(answer_of(client)) == CONTENT


def test_whoever_does_not_take_its_bytes_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "PATIENCE_S", 0.3)
    monkeypatch.setattr(server_module, "MIN_RATE_BYTES_PER_S", 2**30)
    ended = threading.Event()

    def endless(remote: str, request: bytes) -> Iterator[bytes | None]:
        try:
            while True:
                yield bytes(2**20)
        finally:
            ended.set()

    server, counters = serving(endless)
    with closing(server):
        ticket = server.ticket("asker", b"all")
        with connected(ticket) as link:
            link.sendall(ticket.secret)
            assert ended.wait(30.0)
        until(lambda: counters.snapshot().get("direct_broken_off") == 1, "the link has ended")


def test_an_error_of_the_handler_ends_the_link_and_nothing_else() -> None:
    def failing(remote: str, request: bytes) -> Iterator[bytes | None]:
        raise LookupError("all upload slots are taken")
        yield None

    server, counters = serving(failing)
    clock = Clock()
    network = Network(ticket_of(server))
    client, _ = client_of(network, clock)
    with closing(server):
        assert list(answer_of(client, max_bytes=10)) == []
        assert client.stream("giver", b"all", 5.0, 10) is None, "the network is asked meanwhile"
        clock.now += FIRST_PAUSE_S
        assert client.stream("giver", b"all", 5.0, 10) is not None
        until(lambda: counters.snapshot().get("direct_broken_off", 0) >= 1, "counted")


def test_closing_ends_links_and_gives_no_more_tickets() -> None:
    server, _ = serving(never)
    client, _ = client_of(Network(ticket_of(server)))
    pieces = answer_of(client, 30.0, 10)
    server.close()
    assert list(pieces) == []
    with pytest.raises(LookupError, match="stopped"):
        server.ticket("asker", b"all")


@pytest.mark.parametrize("listen", [(), ("/dns4/example.org/tcp/4001",), ("/ip4/192.0.2.1/tcp/4001",)])
def test_a_node_that_can_listen_nowhere_has_no_tickets(listen: tuple[str, ...]) -> None:
    server = DirectServer(content, listen, 0, Counters())
    for _ in range(2):
        with pytest.raises(LookupError, match="listen"):
            server.ticket("asker", b"all")


def test_secrets_are_bounded_one_for_each_peer() -> None:
    clock = Clock()
    secrets = Secrets(clock)
    first = secrets.issue("a", b"1")
    second = secrets.issue("a", b"2")
    assert secrets.redeem(first) is None
    oldest = secrets.issue("b", b"3")
    for number in range(MAX_TICKETS):
        secrets.issue(f"crowd-{number}", b"")
    assert secrets.redeem(second) is None
    assert secrets.redeem(oldest) is None
    last = secrets.issue("c", b"4")
    errand = secrets.redeem(last)
    assert errand is not None
    assert (errand.peer_id, errand.request) == ("c", b"4")
    assert secrets.redeem(last) is None
    clock.now += LIFE_S
    assert not secrets.any()


def test_ports_of_the_system_are_never_named() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode((LEAST_PORT - 1, bytes(32), bytes(32))), type=Ticket)
