from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from swarm.errors import RejectedGroup
from swarm.net.identity import Identity
from swarm.net.peer_exchange import MAX_LIST_BYTES, MAX_LISTED, PeerExchange
from swarm.net.state import NodeState, Profile
from swarm.net.wire import seal_peer_record

from .records import fast_settings, make_manifest, sealed_manifest

FOUNDER = Identity.generate()
RUN = make_manifest(FOUNDER).run_id


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Node:
    def __init__(self, clock: Clock, in_run: bool = True) -> None:
        self.identity = Identity.generate()
        self.state = NodeState(
            fast_settings(), self.identity, Profile(), sealed_manifest(FOUNDER) if in_run else None, clock
        )
        self.state.addresses = ("/ip4/10.0.0.1/tcp/1",)
        self.book = PeerExchange(self.state)


def test_lists_spread_from_node_to_node() -> None:
    clock = Clock()
    a, b, c = (Node(clock) for _ in range(3))
    b.book.learn(a.book.answer())
    c.book.learn(b.book.answer())
    assert set(c.state.known) == {a.identity.peer_id, b.identity.peer_id}
    record = c.state.known[a.identity.peer_id]
    assert record.multiaddrs == (f"/ip4/10.0.0.1/tcp/1/p2p/{a.identity.peer_id}",) and record.run_id == RUN
    # Nobody believes what is said about itself, and nothing older than what is known.
    a.book.learn(c.book.answer())
    assert set(a.state.known) == {b.identity.peer_id, c.identity.peer_id}
    old = a.book.answer()
    clock.now += 1
    newest = b.state.known
    b.book.learn(a.book.answer())
    fresh = b.state.known[a.identity.peer_id]
    assert fresh.expires_at == newest[a.identity.peer_id].expires_at + 1
    b.book.learn(old)
    assert b.state.known[a.identity.peer_id] == fresh


def test_expired_records_are_not_passed_on() -> None:
    clock = Clock()
    a, b = Node(clock), Node(clock)
    b.book.learn(a.book.answer())
    assert len(msgspec.msgpack.decode(b.book.answer())) == 2
    clock.now += 10
    assert len(msgspec.msgpack.decode(b.book.answer())) == 1


def test_without_a_run_there_is_nothing_to_tell() -> None:
    assert msgspec.msgpack.decode(Node(Clock(), in_run=False).book.answer()) == []


def test_forged_records_are_counted_and_the_others_kept() -> None:
    clock = Clock()
    a, b = Node(clock), Node(clock)
    own = a.state.own_record()
    listed = [
        b"junk",
        seal_peer_record(Identity.generate(), own),
        seal_peer_record(a.identity, replace(own, run_id="another-run")),
        seal_peer_record(a.identity, replace(own, expires_at=1e9)),
        seal_peer_record(a.identity, own),
    ]
    b.book.learn(msgspec.msgpack.encode(listed))
    assert set(b.state.known) == {a.identity.peer_id}
    assert b.state.counters.snapshot() == {"refused_peer_records": 4}


def test_a_list_is_bounded() -> None:
    clock = Clock()
    a = Node(clock)
    records = [
        seal_peer_record(other, replace(a.state.own_record(), peer_id=other.peer_id))
        for other in (Identity.generate() for _ in range(MAX_LISTED))
    ]
    a.book.learn(msgspec.msgpack.encode(records))
    assert len(a.state.known) == MAX_LISTED
    answer = a.book.answer()
    assert len(msgspec.msgpack.decode(answer)) == MAX_LISTED and len(answer) <= MAX_LIST_BYTES
    with pytest.raises(RejectedGroup, match="at most"):
        a.book.learn(msgspec.msgpack.encode([b""] * (MAX_LISTED + 1)))


@given(st.binary(max_size=200))
def test_arbitrary_lists_are_refused_or_empty(reply: bytes) -> None:
    node = Node(Clock())
    with suppress(RejectedGroup):
        node.book.learn(reply)
    assert node.state.known == {}
