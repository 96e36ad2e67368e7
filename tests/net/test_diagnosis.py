"""Dial-backs are of use to the asker only; clocks are compared without the way between them."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, strategies as st

from swarm.errors import PeerUnreachable
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.services import diagnosis
from swarm.net.services.diagnosis import (
    DIAL_BACK_PROTOCOL,
    GREETING,
    KEEP_S,
    MAX_DIAL_BACKS,
    TIME_PROTOCOL,
    DialBackReply,
    DialBackRequest,
    DialBacks,
    ask_dial_back,
    asker_ip,
    clock_reading,
    dial_ports,
    read_clock,
    serve_diagnosis,
)

from .records import until

ASKER = {"asker": ("/ip4/203.0.113.7/tcp/50000",)}


class Dials:
    """A dialler that reaches even ports, when it is let to."""

    def __init__(self) -> None:
        self.made: list[tuple[str, tuple[int, ...]]] = []
        self.go_on = threading.Event()

    def __call__(self, host: str, ports: Sequence[int]) -> dict[int, bool]:
        self.made.append((host, tuple(ports)))
        assert self.go_on.wait(10)
        return {port: port % 2 == 0 for port in ports}


def service(peers: dict[str, tuple[str, ...]] = ASKER, now: float = 0.0) -> tuple[DialBacks, Dials, list[float]]:
    dials, clock = Dials(), [now]
    return DialBacks(lambda peer: peers.get(peer, ()), dials, lambda: clock[0]), dials, clock


def ask(dial_backs: DialBacks, *ports: int, peer: str = "asker") -> DialBackReply:
    reply = dial_backs.handle(peer, msgspec.json.encode(DialBackRequest(ports)))
    return msgspec.json.decode(reply, type=DialBackReply)


def test_the_asker_is_dialled_at_its_own_address_and_fetches_the_outcome() -> None:
    dial_backs, dials, _ = service()
    assert ask(dial_backs, 4000, 4001).state == "pending"
    assert ask(dial_backs, 4000, 4001).state == "pending", "asking again starts nothing"
    dials.go_on.set()
    reply = until(lambda: (reply := ask(dial_backs, 4000, 4001)).state == "done" and reply, "the outcome")
    assert (reply.observed, reply.reached) == ("203.0.113.7", {4000: True, 4001: False})
    assert dials.made == [("203.0.113.7", (4000, 4001))]


@pytest.mark.parametrize("ports", [(), (80,), (1023,), (65_536,), (-1,), (4000, 4000), (4000, 4001, 4002, 4003, 4004)])
def test_only_a_few_unprivileged_ports(ports: tuple[int, ...]) -> None:
    dial_backs, dials, _ = service()
    assert ask(dial_backs, *ports).state == "refused"
    assert not dials.made


def test_nobody_is_dialled_for_a_relayed_or_unknown_peer() -> None:
    relayed = ("/ip4/198.51.100.1/tcp/4001/p2p/12D3relay/p2p-circuit",)
    dial_backs, dials, _ = service({"relayed": relayed})
    assert "relay" in ask(dial_backs, 4000, peer="relayed").detail
    assert ask(dial_backs, 4000, peer="unseen").state == "pending", "its connection may show in a moment"
    assert not dials.made
    assert asker_ip((*relayed, "/dns4/a.example/tcp/1", "/ip4/x/tcp/1", "/ip6/2001:db8::1/udp/1/quic")) == "2001:db8::1"


def test_one_address_is_dialled_once_in_a_while_whoever_asks() -> None:
    dial_backs, dials, clock = service({name: ASKER["asker"] for name in ("asker", "sibling")})
    dials.go_on.set()
    ask(dial_backs, 4000)
    until(lambda: ask(dial_backs, 4000).state == "done", "the outcome")
    assert "a moment ago" in ask(dial_backs, 4000, peer="sibling").detail
    assert "a moment ago" in ask(dial_backs, 4002).detail
    clock[0] += KEEP_S
    assert ask(dial_backs, 4002).state == "pending"
    assert len(dials.made) == 2


def test_few_at_once() -> None:
    dial_backs, dials, clock = service({f"p{n}": (f"/ip4/10.0.0.{n}/tcp/1",) for n in range(20)})
    states = [ask(dial_backs, 4000, peer=f"p{n}").state for n in range(20)]
    assert states == ["pending"] * MAX_DIAL_BACKS + ["refused"] * (20 - MAX_DIAL_BACKS)
    clock[0] += 10 * KEEP_S
    assert ask(dial_backs, 4000, peer="p19").state == "refused", "those under way still count"
    dials.go_on.set()


@given(st.binary(max_size=100))
def test_any_request_gets_an_answer(request: bytes) -> None:
    dial_backs, dials, _ = service()
    assert msgspec.json.decode(dial_backs.handle("asker", request), type=DialBackReply).state == "refused"
    assert not dials.made


def test_a_port_counts_only_if_a_libp2p_node_greets_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "DIAL_TIMEOUT_S", 0.5)
    greetings = {"node": GREETING, "mail": b"220 mail.example ESMTP ready", "silent": b"", "closed": None}
    ports = {}
    listeners = []
    for name, words in greetings.items():
        listener = socket.create_server(("127.0.0.1", 0))
        ports[name] = listener.getsockname()[1]
        listeners.append(listener)
        if words is None:
            listener.close()
            continue

        def greet(listener: socket.socket = listener, words: bytes = words) -> None:
            connection, _ = listener.accept()
            connection.sendall(words)
            listeners.append(connection)

        threading.Thread(target=greet, daemon=True).start()
    began = time.monotonic()
    reached = dial_ports("127.0.0.1", list(ports.values()))
    took_s = time.monotonic() - began
    assert reached == {port: name == "node" for name, port in ports.items()}
    assert took_s >= 0.5, "a refusal takes as long as silence"
    began = time.monotonic()
    dial_ports("127.0.0.1", [ports["closed"]])
    assert time.monotonic() - began >= 0.5
    for listener in listeners:
        listener.close()


@pytest.fixture
def pair() -> tuple[MemoryTransport, MemoryTransport]:
    hub = MemoryHub()
    nodes = (MemoryTransport(hub, "bootstrap"), MemoryTransport(hub, "asker"))
    for node in nodes:
        node.start()
    return nodes


class Hosted:
    """A transport without addresses, given some."""

    def __init__(self, transport: MemoryTransport) -> None:
        self.serve = transport.serve

    def observed(self, peer_id: str) -> tuple[str, ...]:
        return ("/ip4/127.0.0.1/tcp/1",)


def test_both_are_asked_over_a_transport(
    pair: tuple[MemoryTransport, MemoryTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "dial_ports", lambda host, ports: dict.fromkeys(ports, True))
    bootstrap, asker = pair
    serve_diagnosis(Hosted(bootstrap), lambda: time.time() + 100)
    reading = read_clock(asker, "bootstrap")
    assert reading.offset_s == pytest.approx(100, abs=0.05) and reading.uncertainty_s < 0.05
    assert ask_dial_back(asker, "bootstrap", [4000]).reached == {4000: True}


@pytest.mark.parametrize("answer", [b'{"state": "done", "detail": "\xff"}', b'"\xff', b"[" * 100_000])
def test_bytes_that_are_no_text_are_a_typed_error(answer: bytes, pair: tuple[MemoryTransport, MemoryTransport]) -> None:
    bootstrap, asker = pair
    bootstrap.serve(DIAL_BACK_PROTOCOL, lambda remote, request: answer)
    with pytest.raises(PeerUnreachable, match="cannot be decoded"):
        ask_dial_back(asker, "bootstrap", [4000])
    assert msgspec.json.decode(service()[0].handle("asker", answer), type=DialBackReply).state == "refused"


def test_answers_that_make_no_sense_are_a_typed_error(pair: tuple[MemoryTransport, MemoryTransport]) -> None:
    bootstrap, asker = pair
    bootstrap.serve(TIME_PROTOCOL, lambda remote, request: b"noon")
    bootstrap.serve(DIAL_BACK_PROTOCOL, lambda remote, request: b"[")
    with pytest.raises(PeerUnreachable, match="8 bytes, got 4"):
        read_clock(asker, "bootstrap")
    with pytest.raises(PeerUnreachable, match="cannot be decoded"):
        ask_dial_back(asker, "bootstrap", [4000])
    bootstrap.serve(DIAL_BACK_PROTOCOL, lambda remote, request: msgspec.json.encode(DialBackReply("pending")))
    with pytest.raises(PeerUnreachable, match="did not finish"):
        ask_dial_back(asker, "bootstrap", [4000], timeout_s=0.0)


def test_half_the_round_trip_is_taken_off() -> None:
    # Asked at 10, answered at 12 our time; the other clock, read at 11, said 16.
    reading = clock_reading(16.0, 10.0, 2.0)
    assert (reading.offset_s, reading.uncertainty_s) == (5.0, 1.0)
    assert struct.calcsize(">d") == 8
