"""An author learns what became of its groups, and nobody else does."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import msgspec
import pytest

from swarm.errors import PeerUnreachable
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.services.usage import PROTOCOL, GroupUsage, ask_usage, serve_usage, usage_by
from swarm.net.trust.accounts import PeerBook, SafetySettings
from swarm.reasons import Reason
from swarm.types import Estimate


@pytest.fixture
def pair() -> Iterator[tuple[MemoryTransport, MemoryTransport]]:
    hub = MemoryHub()
    peers = MemoryTransport(hub, "receiver"), MemoryTransport(hub, "author")
    for peer in peers:
        peer.start()
    yield peers
    for peer in peers:
        peer.close()


def test_each_author_hears_of_its_own_groups(pair: tuple[MemoryTransport, MemoryTransport]) -> None:
    receiver, author = pair
    usage = {"author": GroupUsage(3, 1, 0, 1, Estimate(0.5, 0.2, 0.9)), "another": GroupUsage(9, 9)}
    serve_usage(receiver, usage.__getitem__)
    assert ask_usage(author, "receiver", 5.0) == usage["author"]


def test_who_asks_gets_no_account_by_it() -> None:
    book = PeerBook(SafetySettings(), time.time)
    assert book.find("author") is None and book.stats() == {}
    book.admit("author", 1, 100)
    book.report("author", "used")
    book.report("author", Reason.IMPROBABLE)
    known = book.find("author")
    assert known is not None and (known.received, known.used, known.dropped) == (1, 1, {"improbable": 1})


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"\xc1",
        b"x" * 2**15,
        b"\x91" * 2**13,
        msgspec.msgpack.encode(GroupUsage(-1)),
        msgspec.msgpack.encode({"used": "7"}),
        msgspec.msgpack.encode(GroupUsage(1, 1, 0, 0, Estimate(math.nan, 0.0, 1.0))),
        msgspec.msgpack.encode(GroupUsage(1, 1, 0, 0, Estimate(0.0, -math.inf, 1.0))),
    ],
)
def test_an_answer_of_no_use_is_none(reply: bytes, pair: tuple[MemoryTransport, MemoryTransport]) -> None:
    receiver, author = pair
    receiver.serve(PROTOCOL, lambda remote, request: reply)
    with pytest.raises(PeerUnreachable):
        ask_usage(author, "receiver", 5.0)
    receiver.serve(PROTOCOL, lambda remote, request: msgspec.msgpack.encode(GroupUsage(7)))
    assert ask_usage(author, "receiver", 5.0).received == 7


def test_an_author_does_not_learn_which_check_refused_it() -> None:
    book = PeerBook(SafetySettings(), time.time)
    book.admit("author", 5, 100)
    for reason in (Reason.IMPROBABLE, Reason.COPIED, Reason.NOT_NEEDED):
        book.report("author", reason)
    known = book.find("author")
    assert known is not None
    usage = usage_by(known.received, known.used, known.dropped, None, {})
    assert usage == GroupUsage(1, 0, 1, 2)
