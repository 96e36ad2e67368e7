"""An author learns what became of its groups, and nobody else does."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import pytest

from swarm.errors import PeerUnreachable
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.services.usage import PROTOCOL, GroupUsage, ask_usage, serve_usage
from swarm.net.trust.accounts import PeerBook, SafetySettings
from swarm.reasons import Reason
from swarm.types import Estimate

WORTH = Estimate(0.5, 0.2, 0.9)


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
    book = PeerBook(SafetySettings(), time.time)
    serve_usage(receiver, book, {"author": WORTH}.get)
    assert ask_usage(author, "receiver", 5.0) == GroupUsage(worth=WORTH), "unknown, as long as nothing has come"
    assert book.find("author") is None, "whoever asks gets no account by it"
    for sequence in range(3):
        book.admit("author", sequence, 100)
        book.admit("another", sequence, 100)
    book.report("author", "used")
    book.report("author", Reason.IMPROBABLE)
    book.report("another", Reason.COPIED)
    assert ask_usage(author, "receiver", 5.0) == GroupUsage(3, 1, {"improbable": 1}, WORTH)


@pytest.mark.parametrize(
    "reply", [b"", b"\xc1", b"x" * 2**15, msgspec.msgpack.encode(GroupUsage(-1)), msgspec.msgpack.encode({"used": "7"})]
)
def test_an_answer_of_no_use_is_none(reply: bytes, pair: tuple[MemoryTransport, MemoryTransport]) -> None:
    receiver, author = pair
    receiver.serve(PROTOCOL, lambda remote, request: reply)
    with pytest.raises(PeerUnreachable):
        ask_usage(author, "receiver", 5.0)
    receiver.serve(PROTOCOL, lambda remote, request: msgspec.msgpack.encode(GroupUsage(7)))
    assert ask_usage(author, "receiver", 5.0).received == 7
