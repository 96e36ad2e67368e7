from __future__ import annotations

import pytest
from msgspec.structs import replace

from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records import envelope as envelope_module
from swarm.net.records.identity import Identity
from swarm.net.records.wire import Limits, make_run_id, seal
from swarm.net.trust import exchange as exchange_module
from swarm.net.trust.exchange import Exchange
from swarm.reasons import Reason
from swarm.types import RefusedRecord

from .records import make_group, sealed_manifest


class Pair:
    """Two nodes of one run in one process."""

    def __init__(self, limits: Limits | None = None) -> None:
        hub = MemoryHub()
        self.alice, self.bob = Identity.generate(), Identity.generate()
        self.run_id = make_run_id("demo", self.alice.peer_id)
        self.near = MemoryTransport(hub, self.alice.peer_id, sealed_manifest(self.alice), limits=limits)
        self.far = MemoryTransport(hub, self.bob.peer_id, limits=limits)
        for transport in (self.near, self.far):
            transport.start()
        self.now = 1_000.0
        self.sender = Exchange(self.near, self.alice, limits, clock=lambda: self.now)
        self.receiver = Exchange(self.far, self.bob, limits, clock=lambda: self.now)


def test_a_group_arrives_stamped_and_once() -> None:
    pair = Pair()
    published = pair.sender.share(make_group())
    assert published is not None
    assert (published.run_id, published.peer_id) == (pair.run_id, pair.alice.peer_id)
    groups, refused = pair.receiver.receive()
    assert [each.group for each in groups] == [published] and refused == {}
    assert pair.receiver.receive() == ([], {})
    assert pair.receiver.status().connected == (pair.alice.peer_id,)


def test_without_a_run_nothing_is_shared() -> None:
    transport = MemoryTransport(MemoryHub(), "x")
    transport.start()
    exchange = Exchange(transport, Identity.generate())
    assert exchange.share(make_group()) is None
    assert exchange.receive() == ([], {})


def test_a_group_too_large_for_a_record_is_not_shared() -> None:
    pair = Pair(Limits(max_record_bytes=100))
    assert pair.sender.share(make_group()) is None
    assert pair.far.drain() == []


def test_duplicates_and_refusals_are_counted_by_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    group = make_group(pair.run_id, pair.alice.peer_id)
    good = seal(pair.alice, pair.run_id, "group", group)
    monkeypatch.setattr(envelope_module, "COMPRESSION_LEVEL", -7)
    # The transport drops the same bytes; the same group in other bytes gets this far.
    same = seal(pair.alice, pair.run_id, "group", group)
    assert same != good
    for record in (good, good, same, b"junk", seal(pair.alice, pair.run_id, "group", replace(group, rewards=())), b""):
        pair.near.publish(record)
    groups, refused = pair.receiver.receive()
    assert len(groups) == 1
    assert refused == {"duplicate": 1, "malformed": 2, "limits": 1}
    assert pair.far.counters()["duplicates"] == 1


def test_own_groups_sent_back_are_dropped_silently() -> None:
    pair = Pair()
    pair.near.publish(seal(pair.bob, pair.run_id, "group", make_group(pair.run_id, pair.bob.peer_id)))
    assert pair.receiver.receive() == ([], {})


def test_a_forgery_does_not_shadow_the_genuine_group() -> None:
    pair = Pair()
    group = make_group(pair.run_id, pair.alice.peer_id)
    pair.near.publish(seal(Identity.generate(), pair.run_id, "group", group))
    pair.near.publish(seal(pair.alice, pair.run_id, "group", group))
    groups, refused = pair.receiver.receive()
    assert len(groups) == 1 and refused == {"wrong_peer": 1}


def test_memory_of_what_was_seen_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "SEEN_GROUPS", 2)
    pair = Pair()
    for sequence in (0, 1, 2):
        pair.sender.share(make_group(sequence=sequence))
    monkeypatch.setattr(envelope_module, "COMPRESSION_LEVEL", -7)
    pair.sender.share(make_group(sequence=0))
    groups, refused = pair.receiver.receive()
    assert [each.group.sequence for each in groups] == [0, 1, 2] and refused == {"replayed": 1}


def test_what_was_refused_on_arrival_is_counted_and_not_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    refused = RefusedRecord(Reason.MALFORMED, "noise", pair.alice.peer_id)
    monkeypatch.setattr(pair.far, "drain", lambda: [refused] * 3)
    assert pair.receiver.receive() == ([], {"malformed": 3})
    assert pair.receiver.book.stats()[pair.alice.peer_id].dropped == {"malformed": 3}


def test_nothing_is_looked_at_of_who_would_not_be_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    for _ in range(3):
        pair.receiver.report(pair.alice.peer_id, "verifier_timeout")
    pair.sender.share(make_group())
    monkeypatch.setattr(exchange_module, "check_age", lambda *arguments, **options: pytest.fail("it was looked at"))
    assert pair.receiver.receive() == ([], {"quarantined": 1})


def test_the_network_is_told_who_was_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    told: list[frozenset[str]] = []
    monkeypatch.setattr(pair.far, "trust", lambda proven, *_: told.append(proven))
    for _ in range(4):
        pair.receiver.report(pair.alice.peer_id, "used")
    pair.receiver.receive()
    assert told == [{pair.alice.peer_id}]
    pair.now -= 500.0
    pair.receiver.receive()
    assert len(told) == 2, "also when the clock is set back"


def test_a_clock_that_is_ahead_is_told_once_and_held_against_nobody(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair()
    for sequence in range(30):
        group = replace(make_group(pair.run_id, pair.alice.peer_id, sequence), created_at=1_660.0)
        pair.near.publish(seal(pair.alice, pair.run_id, "group", group))
    assert pair.receiver.receive() == ([], {"clock": 30})
    assert pair.alice.peer_id not in pair.receiver.book.quarantined()
    assert caplog.text.count("created 660 s in the future") == 1
