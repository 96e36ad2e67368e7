"""Attacks on direct links: strangers at the port, peers with tickets, and those between the two ends."""

from __future__ import annotations

import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import psutil
import pytest

import swarm.extras.direct.server as server_module
from swarm.errors import PeerUnreachable
from swarm.extras.direct.client import FIRST_PAUSE_S
from swarm.extras.direct.server import MAX_LINKS, DirectServer, LinkSlots
from swarm.extras.direct.tickets import LIFE_S
from swarm.net.guard import Counters
from tests.extras.direct.test_direct import (
    CONTENT,
    Network,
    answer_of,
    client_of,
    connected,
    content,
    never,
    said,
    serving,
    ticket_of,
)
from tests.net.records import until
from tests.net.test_repair import Clock

A_RECORD = b"\x16\x03\x01\x40\x00"
"""Header of a handshake's record of 16 KiB."""
TOO_LONG, EMPTY = b"\x16\x03\x01\xff\xff", b"\x16\x03\x01\x00\x00"


@pytest.fixture(autouse=True)
def no_thread_fails(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a peer does, it ends no thread with an error, and the threads end."""
    failed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    yield
    until(lambda: not num_threads(), "all threads have ended")
    assert failed == []


def num_threads() -> int:
    return sum(thread.name == "swarm-direct" for thread in threading.enumerate())


def at(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 5.0)


def still_serves(server: DirectServer) -> None:
    client, _ = client_of(Network(ticket_of(server)))
    assert b"".join(answer_of(client)) == CONTENT


@pytest.mark.parametrize(
    "junk",
    [b"", b"GET / HTTP/1.1\r\n\r\n", random.Random(0).randbytes(2**16), TOO_LONG + bytes(2**16), EMPTY, A_RECORD],
    ids=["nothing", "another protocol", "noise", "too long", "empty", "cut short"],
)
def test_junk_instead_of_a_handshake_ends_its_own_link(junk: bytes) -> None:
    server, counters = serving(content)
    with closing(server):
        with at(server.ticket("asker", b"all").port) as stranger:
            with suppress(OSError):  # it may be hung up on meanwhile
                stranger.sendall(junk)
                stranger.shutdown(socket.SHUT_WR)
            said(stranger)
        until(lambda: counters.snapshot().get("direct_broken_off") == 1, "the link has ended")
        still_serves(server)


def test_an_older_tls_is_refused() -> None:
    server, _ = serving(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with closing(server), at(server.ticket("asker", b"all").port) as plain, pytest.raises(OSError):
        context.wrap_socket(plain)


def test_a_handshake_byte_by_byte_has_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "INTRODUCTION_S", 0.5)
    server, _ = serving(content)
    with closing(server), at(server.ticket("asker", b"all").port) as stranger:
        stranger.sendall(A_RECORD)
        trickle(stranger.sendall)


def test_a_secret_byte_by_byte_has_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "INTRODUCTION_S", 2.0)
    server, counters = serving(content)
    with closing(server):
        ticket = server.ticket("asker", b"all")
        with connected(ticket) as link:
            trickle(link.sendall)
        assert "direct_links" not in counters.snapshot()


def trickle(send: Callable[[bytes], None]) -> None:
    """Send single bytes until the other end hangs up, which it does while they come."""
    began = time.monotonic()
    with pytest.raises((ConnectionError, ssl.SSLError)):
        while time.monotonic() - began < 60.0:
            send(b"x")
            time.sleep(0.1)


def test_mute_connections_keep_nobody_from_a_link() -> None:
    server, counters = serving(content)
    with closing(server):
        port = server.ticket("stranger", b"all").port
        mute = [at(port) for _ in range(3 * MAX_LINKS)]
        until(lambda: counters.snapshot().get("direct_broken_off", 0) >= 2 * MAX_LINKS, "the oldest make room")
        still_serves(server)
        for each in mute:
            each.close()


def test_an_identity_has_one_link() -> None:
    server, counters = serving(never)
    with closing(server):
        links = []
        for number in range(2 * MAX_LINKS):
            ticket = server.ticket("hoarder", b"all")
            links.append(connected(ticket))
            links[-1].sendall(ticket.secret)
            until(lambda count=number + 1: counters.snapshot().get("direct_links") == count, "it is admitted")  # type: ignore[misc]
        until(lambda: num_threads() == 2, "only the last is left, and who listens")
        assert all(said(link) == b"" for link in links[:-1])
        for link in links:
            link.close()


def test_a_secret_is_void_after_its_time_whoever_has_a_ticket_besides() -> None:
    clock = Clock()
    server, counters = serving(content, clock)
    with closing(server):
        late = server.ticket("asker", b"all")
        clock.now += LIFE_S
        server.ticket("another", b"all")
        with connected(late) as link:
            link.sendall(late.secret)
            assert said(link) == b""
        until(lambda: counters.snapshot() == {"direct_broken_off": 1}, "it is refused")


def test_a_secret_that_was_guessed_is_refused() -> None:
    server, counters = serving(content)
    with closing(server):
        ticket = server.ticket("asker", b"all")
        for guess in (bytes(32), ticket.secret[:-1] + bytes([ticket.secret[-1] ^ 1]), ticket.certificate):
            with connected(ticket) as link:
                link.sendall(guess)
                assert said(link) == b""
        assert "direct_links" not in counters.snapshot()
        with connected(ticket) as link:
            link.sendall(ticket.secret)
            assert said(link) == CONTENT


@pytest.mark.parametrize("error", [RuntimeError("a mistake"), AssertionError(), RecursionError()])
def test_any_error_of_the_handler_is_counted(error: Exception) -> None:
    def failing(remote: str, request: bytes) -> Iterator[bytes | None]:
        yield b"first"
        raise error

    server, counters = serving(failing)
    client, _ = client_of(Network(ticket_of(server)))
    with closing(server):
        assert b"".join(answer_of(client)) == b"first"
        until(lambda: counters.snapshot().get("direct_broken_off") == 1, "it is counted")


def test_no_thread_for_a_link_ends_none_but_this_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a limit of processes."""
    server, counters = serving(content)
    with closing(server):
        port = server.ticket("asker", b"all").port
        start = threading.Thread.start

        def cannot_start(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", cannot_start)
        with at(port) as stranger:
            assert said(stranger) == b""
        monkeypatch.setattr(threading.Thread, "start", start)
        until(lambda: counters.snapshot() == {"direct_turned_away": 1}, "it is counted, after the link is closed")
        still_serves(server)


@pytest.mark.parametrize("listen", ["/ip4/127.0.0.1/tcp/4001", "/ip4/127.0.0.1/udp/4001/quic-v1", "/ip6/::1/tcp/4001"])
def test_the_port_is_open_where_the_node_listens_and_nowhere_else(listen: str) -> None:
    host = listen.split("/")[2]
    if host == "::1" and not can_bind_ipv6():
        pytest.skip("this machine has no IPv6")
    others = listening_at()
    server = DirectServer(content, (listen,), 0, Counters())
    assert listening_at() == others, "nothing listens before the first ticket"
    with closing(server):
        port = server.ticket("asker", b"all").port
        assert listening_at() - others == {(host, port)}
    until(lambda: listening_at() <= others, "the port is closed")


def can_bind_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def listening_at() -> set[tuple[str, int]]:
    open_now = psutil.Process().net_connections("tcp")
    return {(each.laddr.ip, each.laddr.port) for each in open_now if each.status == psutil.CONN_LISTEN}


def test_closing_ends_strangers_in_the_middle_of_a_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "INTRODUCTION_S", 600.0)
    server, _ = serving(content)
    port = server.ticket("asker", b"all").port
    with at(port) as stranger:
        until(lambda: num_threads() == 2, "it is let in")
        server.close()
        assert said(stranger) == b""


def test_links_that_break_in_the_middle_leave_the_network_its_turn() -> None:
    """Something between the two lets the first bytes through: a chunk would never arrive whole."""

    def breaking(remote: str, request: bytes) -> Iterator[bytes | None]:
        yield CONTENT[:1_000]

    clock = Clock()
    server, _ = serving(breaking)
    client, counters = client_of(Network(ticket_of(server)), clock)
    with closing(server):
        for attempt in range(3):
            with suppress(PeerUnreachable):
                assert b"".join(answer_of(client)) == CONTENT[:1_000]
            assert client.stream("giver", b"all", 5.0, 10) is None, "the network is asked meanwhile"
            assert counters.snapshot() == {"direct_failures": attempt + 1}
            clock.now += FIRST_PAUSE_S  # no longer, however often: bytes did arrive


def test_a_ticket_for_one_peer_is_not_the_ticket_of_another() -> None:
    """The answer goes out in the name of whom the ticket was given to, whoever comes with it."""
    asked = []

    def asking(remote: str, request: bytes) -> Iterator[bytes | None]:
        asked.append((remote, request))
        yield b"x"

    server, _ = serving(asking)
    with closing(server):
        tickets = {name: server.ticket(name, name.encode()) for name in ("a", "b")}
        for name in ("b", "a"):
            with connected(tickets[name]) as link:
                link.sendall(tickets[name].secret)
                assert said(link) == b"x"
    assert asked == [("b", b"b"), ("a", b"a")]


class Links:
    """Stand-ins for the links of a server."""

    def __init__(self) -> None:
        self.ended: list[int] = []
        self.slots: LinkSlots[int] = LinkSlots(self.ended.append)

    def crowd(self, first: int, count: int, host: str) -> None:
        for link in range(first, first + count):
            assert self.slots.admit(link, host)

    def end(self) -> None:
        """The threads of ended links notice."""
        for link in self.ended:
            self.slots.release(link)


def test_the_host_with_most_strangers_makes_room() -> None:
    links = Links()
    links.crowd(0, 1, "honest")
    links.crowd(1, MAX_LINKS - 1, "hostile")
    links.crowd(100, 5, "hostile")
    assert links.ended == [1, 2, 3, 4, 5], "the oldest of the hostile host"


def test_who_has_shown_a_ticket_makes_no_room_for_strangers() -> None:
    links = Links()
    links.crowd(0, MAX_LINKS, "host")
    for link in range(MAX_LINKS):
        links.slots.introduce(link, f"peer-{link}")
    assert not links.slots.admit(100, "elsewhere")
    links.slots.release(3)
    assert links.slots.admit(100, "elsewhere")
    assert links.ended == []


def test_threads_are_bounded_even_when_the_ended_are_slow_to_notice() -> None:
    links = Links()
    links.crowd(0, 2 * MAX_LINKS, "host")
    assert not links.slots.admit(100, "host")
    links.end()
    assert links.slots.admit(101, "host")


def test_who_was_ended_is_not_introduced() -> None:
    links = Links()
    links.crowd(0, MAX_LINKS + 1, "host")
    assert links.ended == [0]
    assert not links.slots.introduce(0, "late")
    assert links.slots.introduce(1, "peer")
