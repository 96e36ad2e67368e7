"""What others send may raise anything anywhere: it is counted, blamed on them, and everything else goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from swarm.errors import PeerUnreachable, TransportError
from swarm.net import guard as guard_module
from swarm.net.guard import Counters, Guard
from swarm.net.hivemind.session import Discovery, Session
from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.membership.following import Following
from swarm.net.membership.transport import MemberTransport
from swarm.net.membership.upkeep import Upkeep
from swarm.net.records.large import LARGE_PROTOCOL
from swarm.net.records.repair import GIVE_PROTOCOL, HAVE_PROTOCOL
from swarm.net.runtime import AsyncioRuntime
from swarm.net.services.requests import MANIFEST_PROTOCOL, PEERS_PROTOCOL

from .records import drained, signed, until

ERRORS = (ValueError, OverflowError, RecursionError, KeyError, UnicodeDecodeError, MemoryError, AssertionError)


class Book:
    """A guard, and what it has noted."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.complaints: list[tuple[str, str]] = []
        self.guard = Guard(self.counters, lambda peer, reason: self.complaints.append((peer, reason)))


def test_what_raises_is_blamed_on_who_sent_it_but_for_what_may_happen_to_anybody() -> None:
    book = Book()
    for error in (msgspec.ValidationError("x"), OverflowError(), LookupError("not held here"), OSError()):
        book.guard.request_failed("remote", error)
    assert book.complaints == [("remote", "bad_request")] * 2
    assert book.counters.snapshot() == {"handler_errors": 4}


def test_a_record_that_cannot_be_taken_in_costs_who_handed_it_over() -> None:
    book, heard = Book(), []

    def receive(helper: str, record: bytes) -> None:
        heard.append(record)
        if record == b"bad":
            raise RecursionError
        if record == b"worse":
            raise PeerUnreachable("no honest peer holds it")

    hear = book.guard.guarded(receive)
    hear("helper", b"bad")
    with pytest.raises(PeerUnreachable):
        hear("helper", b"worse")
    hear("helper", b"good")
    assert heard == [b"bad", b"worse", b"good"] and book.complaints == [("helper", "bad_gossip")]


def test_a_loop_begins_again_after_every_error_until_the_network_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(guard_module, "MAX_PAUSE_S", 0.002)
    problems: list[Exception] = [OverflowError(), PeerUnreachable("away"), KeyError(), TransportError("gone")]

    async def loop() -> None:
        raise problems.pop(0)

    book = Book()
    with pytest.raises(TransportError, match="gone"):
        asyncio.run(book.guard.supervise(loop, AsyncioRuntime()))
    assert problems == [] and book.counters.snapshot() == {"loop_errors": 3}


SESSION_LOOPS = ("_dial", "_reserve", "_observe", "_join", "_publish_outgoing")
UPKEEP_LOOPS = ("repair", "download", "exchange_peers")
FOLLOWING_LOOPS = ("greet", "follow", "fetch")


@pytest.mark.network
def test_every_loop_and_handler_may_raise_and_the_node_goes_on(
    start: Callable[..., MemberTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each loop of the first node raises at its first turn, and each handler at its first request."""
    victim: list[MemberTransport] = []
    raised: list[str] = []

    def failing(owner: type, name: str) -> None:
        real = getattr(owner, name)

        async def loop(self: Any) -> None:
            if victim and self._member is victim[0]._member and name not in raised:
                raised.append(name)
                raise ERRORS[len(raised) % 4]("provoked")
            await real(self)

        monkeypatch.setattr(owner, name, loop)

    for name in SESSION_LOOPS:
        failing(Session, name)
    for name in UPKEEP_LOOPS:
        failing(Upkeep, name)
    for name in FOLLOWING_LOOPS:
        failing(Following, name)
    failing(Discovery, "discover")

    def deaf_at_first(node: MemberTransport) -> None:
        victim.append(node)
        real = node._member.records.receive_gossip

        def receive(sender: str, record: bytes) -> None:
            if "receive" not in raised:
                raised.append("receive")
                raise OverflowError("provoked")
            real(sender, record)

        monkeypatch.setattr(node._member.records, "receive_gossip", receive)

    first = start("founder", before=deaf_at_first)
    assert isinstance(first, HivemindTransport)
    second = start("b", first.multiaddrs())
    loops = {*SESSION_LOOPS, *UPKEEP_LOOPS, *FOLLOWING_LOOPS, "discover"}
    until(lambda: set(raised) == loops, "every loop has raised")
    until(lambda: first.counters().get("loop_errors", 0) >= len(loops), "and was counted")
    until(lambda: first.status().connected and second.status().connected, "they meet nevertheless")

    provoked = {protocol: first._member.answering.handlers[protocol] for protocol in first._member.answering.handlers}
    for number, protocol in enumerate(provoked):

        def handler(remote: str, request: bytes, error: type[Exception] = ERRORS[number % 4]) -> Any:
            raise error("provoked")

        first.serve_stream(protocol, handler)
    for protocol in (MANIFEST_PROTOCOL, PEERS_PROTOCOL, HAVE_PROTOCOL, GIVE_PROTOCOL, LARGE_PROTOCOL):
        with pytest.raises(PeerUnreachable, match="the handler failed"):
            second.request(first.peer_id, protocol, b"", 10.0)
    for protocol, real in provoked.items():
        first.serve_stream(protocol, real)
    assert first.counters()["handler_errors"] >= 5
    assert (second.peer_id, "bad_request") in first.complaints()

    second.publish(signed(second, b"provokes"))
    until(
        lambda: (second.peer_id, "bad_gossip") in first.complaints(),
        "a record that raises is blamed on who handed it over",
    )
    record = signed(second, b"after all that")
    second.publish(record)
    until(lambda: record in drained(first), "gossip arrives")
    assert second.request(first.peer_id, MANIFEST_PROTOCOL, b"", 10.0) == first.sealed_manifest()
    assert first.counters().get("daemon_restarts", 0) == 0
