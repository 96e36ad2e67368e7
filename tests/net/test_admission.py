"""What is let in before anything is verified: budgets of authors, helpers and crowds of names, without any network."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from swarm.errors import PeerUnreachable
from swarm.net.config import NetworkSettings
from swarm.net.membership.member import Member, Profile
from swarm.net.records.identity import Identity
from swarm.net.records.stores import record_id
from swarm.net.records.wire import make_run_id, seal
from swarm.net.trust.record_admission import MAX_BUCKETS, NEWCOMER_SHARES, RecordAdmission
from swarm.types import Completion, RefusedRecord

from .records import drained, make_group, sealed_manifest

OWN, ALICE, BOB, MALLORY = (Identity.generate() for _ in range(4))
RUN_ID = make_run_id("demo", ALICE.peer_id)
SETTINGS = NetworkSettings(inbox_records=100, shelf_records=1_000)
"""A newcomer may have 100 records taken in at once and 600 a minute, a member 3 000."""


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def admission(clock: Clock) -> RecordAdmission:
    admission = RecordAdmission(SETTINGS, clock)
    admission.proven = frozenset()
    return admission


def test_any_number_of_names_get_what_one_newcomer_gets(admission: RecordAdmission, clock: Clock) -> None:
    connected = {"mallory", "bob"}
    assert sum(admission.admits_gossip("mallory", f"name-{i}", connected, 100) for i in range(5_000)) == 100
    assert sum(admission.admits_repair("mallory", f"name-{i}", connected, 100, 100) for i in range(5_000)) == 100
    assert admission.admits_gossip("mallory", "bob", connected, 100), "who is connected has a budget of its own"
    clock.now += 60
    assert sum(admission.admits_gossip("mallory", f"name-{i}", connected, 100) for i in range(5_000)) == 100, (
        "no more than at once"
    )


def test_coming_back_under_other_names_does_not_fill_the_bucket(admission: RecordAdmission, clock: Clock) -> None:
    taken = 0
    for i in range(100):
        taken += sum(admission.admits_gossip("mallory", f"name-{i}", {f"name-{i}", "bob"}, 100) for _ in range(200))
    assert taken == 100 * NEWCOMER_SHARES, "what so many newcomers get that come at once"


def test_what_was_of_use_makes_a_member(admission: RecordAdmission) -> None:
    admission.proven = frozenset({"alice"})
    assert sum(admission.admits_gossip("mallory", f"name-{i}", set(), 100) for i in range(200)) == 100
    assert sum(admission.admits_gossip("mallory", "alice", set(), 100) for _ in range(5_000)) == 3_000
    assert sum(admission.admits_repair("bob", "alice", set(), 100, 100) for _ in range(5_000)) == 3_000


def test_a_record_costs_what_it_comes_to_when_it_is_opened(admission: RecordAdmission) -> None:
    assert sum(admission.admits_gossip("mallory", "bomb", {"bomb"}, 8 * 2**20) for _ in range(100)) == 8
    assert not admission.admits_gossip("mallory", "bomb", {"bomb"}, 2**20)


def test_where_nobody_judges_those_connected_are_members(clock: Clock) -> None:
    admission = RecordAdmission(SETTINGS, clock)
    assert sum(admission.admits_gossip("mallory", "alice", {"alice"}, 100) for _ in range(5_000)) == 3_000
    assert sum(admission.admits_gossip("mallory", f"name-{i}", {"alice"}, 100) for i in range(5_000)) == 100


def test_memory_of_budgets_is_bounded(admission: RecordAdmission) -> None:
    admission.proven = frozenset(f"name-{i}" for i in range(2 * MAX_BUCKETS))
    for name in admission.proven:
        assert admission.admits_gossip("mallory", name, set(), 100)
    assert len(admission._buckets) == MAX_BUCKETS


def test_a_late_joiner_is_given_a_whole_shelf_by_one_helper() -> None:
    """Of members it knows by then, and so many of others as its inbox holds."""
    member = _member()
    member.peers.update(frozenset({BOB.peer_id}), frozenset())
    member.records.trust({ALICE.peer_id})
    for number in range(1_000):
        member.records.receive_repaired(BOB.peer_id, _record(ALICE, number), 3.0)
    assert len(member.records.store) == 1_000


def test_sixteen_that_come_at_once_lose_nothing() -> None:
    """The first is heard before the others are connected."""
    member = _member(NetworkSettings())
    peers = [Identity.generate() for _ in range(16)]
    member.records.trust(())
    arrived = 0
    for number in range(100):
        member.peers.update(frozenset(peer.peer_id for peer in peers[: number + 1]), frozenset())
        for peer in peers:
            member.records.receive_gossip(peer.peer_id, _record(peer, number))
        arrived += len(member.records.inbox.drain())
    assert arrived == 16 * 100


def _member(settings: NetworkSettings = SETTINGS) -> Member:
    """A node for which no time passes, so that no bucket fills."""
    member = Member(settings, OWN, Profile(), sealed_manifest(ALICE))
    member.records.admission = RecordAdmission(settings, Clock())
    return member


def _record(identity: Identity, sequence: int = 0, **changes: object) -> bytes:
    group = make_group(RUN_ID, identity.peer_id, sequence)
    return seal(identity, RUN_ID, "group", replace(group, **changes))


def test_copies_under_fresh_names_come_to_no_more_than_one_newcomer_s() -> None:
    member = _member()
    member.records.trust(())
    member.peers.update(frozenset({MALLORY.peer_id}), frozenset())
    taken = 0
    for number in range(300):
        try:
            member.records.receive_repaired(MALLORY.peer_id, _record(Identity.generate(), number), 3.0)
            taken += 1
        except PeerUnreachable:
            break
    assert taken == len(member.records.store) == 100
    other = _record(ALICE)
    member.peers.update(frozenset({MALLORY.peer_id, ALICE.peer_id}), frozenset())
    member.records.receive_gossip(ALICE.peer_id, other)
    assert member.records.store.get(record_id(other)) == other, "others come in meanwhile"


def test_what_is_malformed_under_a_good_signature_is_not_handed_on_and_speaks_against_the_helper() -> None:
    member = _member()
    member.peers.update(frozenset({ALICE.peer_id, MALLORY.peer_id}), frozenset())
    noise = seal(MALLORY, RUN_ID, "group", "noise")  # type: ignore[type-var]
    with pytest.raises(PeerUnreachable, match="no honest peer holds"):
        member.records.receive_repaired(ALICE.peer_id, noise, 3.0)
    assert member.complaints.take() == [(ALICE.peer_id, "bad_gift")]
    other = seal(MALLORY, RUN_ID, "group", "other noise")  # type: ignore[type-var]
    member.records.receive_gossip(MALLORY.peer_id, other)
    (refused,) = member.records.inbox.drain()
    assert isinstance(refused, RefusedRecord)
    assert (refused.reason, refused.peer_id) == ("malformed", MALLORY.peer_id)
    held = member.records.store
    assert len(held) == 0 and held.has_seen(record_id(noise)) and held.has_seen(record_id(other))


def test_what_another_s_settings_allow_is_not_held_against_the_helper() -> None:
    member = _member(NetworkSettings(max_completion_chars=100))
    member.peers.update(frozenset({ALICE.peer_id}), frozenset())
    member.records.receive_repaired(
        ALICE.peer_id, _record(BOB, completions=(Completion("x" * 101, "stop"),), rewards=(0.0,)), 3.0
    )
    assert len(member.records.store) == 0 and member.complaints.take() == []


def test_a_false_name_costs_the_helper_not_the_one_named() -> None:
    member = _member()
    member.records.trust({ALICE.peer_id})
    for number in range(20):
        forged = _record(ALICE, number)[:-1] + b"?"
        with pytest.raises(PeerUnreachable):
            member.records.receive_repaired(MALLORY.peer_id, forged, 3.0)
    member.records.receive_gossip(ALICE.peer_id, _record(ALICE))
    assert len(member.records.inbox.drain()) == 1


def test_the_inbox_holds_what_records_become(monkeypatch: pytest.MonkeyPatch) -> None:
    member = _member(NetworkSettings(inbox_bytes=4 * 2**20))
    member.peers.update(frozenset({ALICE.peer_id, MALLORY.peer_id}), frozenset())
    member.records.receive_gossip(ALICE.peer_id, _record(ALICE))
    text = "a" * 60_000 + "\N{GRINNING FACE}"
    for number in range(4):
        bomb = _record(MALLORY, number, completions=(Completion(text, "stop"),) * 10, rewards=(0.0,) * 10)
        assert len(bomb) < 2_000
        member.records.receive_gossip(MALLORY.peer_id, bomb)
    kept = drained(member.records.inbox)
    assert kept[0] == _record(ALICE) and len(kept) < 4
