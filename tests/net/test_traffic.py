"""What a node's network side lets in, without any network."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from msgspec.structs import replace

from swarm.errors import PeerUnreachable
from swarm.net.config import NetworkSettings
from swarm.net.membership.member import Member, Profile
from swarm.net.records.envelope import Body, Envelope
from swarm.net.records.feed import decode_part
from swarm.net.records.identity import Identity
from swarm.net.records.stores import record_id
from swarm.net.records.wire import Announcement, make_run_id, seal, seal_announcement
from swarm.net.trust.accounts import SafetySettings
from swarm.reasons import Reason
from swarm.types import SCHEMA_VERSION, RefusedRecord

from .records import drained, make_group, sealed_manifest

OWN, ALICE, MALLORY = Identity.generate(), Identity.generate(), Identity.generate()
RUN_ID = make_run_id("demo", ALICE.peer_id)
MANIFEST = sealed_manifest(ALICE)


@pytest.fixture
def member() -> Member:
    settings = NetworkSettings(max_record_bytes=10_000, inbox_records=20, inbox_bytes=20_000)
    return Member(settings, OWN, Profile(), MANIFEST)


def _record(identity: Identity, sequence: int = 0) -> bytes:
    return seal(identity, RUN_ID, "group", make_group(RUN_ID, identity.peer_id, sequence))


def test_what_a_feed_hands_over_is_checked_stored_and_handed_on(member: Member) -> None:
    record, unread = _record(ALICE), member.records.feed.follow("bob")
    next(unread)
    member.records.receive_gossip(MALLORY.peer_id, record)
    assert drained(member.records.inbox) == [record], "whoever signed it"
    assert member.records.store.get(record_id(record)) == record
    assert decode_part(bytes(next(unread))).records == (record,)  # type: ignore[arg-type]
    member.records.receive_gossip(ALICE.peer_id, record)
    assert member.records.inbox.drain() == [] and member.counters.snapshot()["duplicates"] == 1
    member.records.receive_repaired(MALLORY.peer_id, _record(ALICE, 1), 3.0)
    assert drained(member.records.inbox) == [_record(ALICE, 1)]
    assert not isinstance(next(unread), bytes), "what repair brings was handed on when it was new"


def test_what_a_later_version_understands_is_handed_on_if_it_is_signed(member: Member) -> None:
    unread = member.records.feed.follow("bob")
    next(unread)
    group = make_group(RUN_ID, ALICE.peer_id)
    later = seal(ALICE, RUN_ID, "conversation", group)  # type: ignore[arg-type]
    elsewhere = seal(ALICE, "another-run", "conversation", group)  # type: ignore[arg-type]
    for record in (later[:-1] + b"?", elsewhere):
        with pytest.raises(PeerUnreachable, match="no honest peer holds"):
            member.records.receive_gossip(MALLORY.peer_id, record)
    assert member.complaints.take() == [(MALLORY.peer_id, Reason.BAD_GIFT)] * 2
    member.records.receive_gossip(MALLORY.peer_id, later)
    assert decode_part(bytes(next(unread))).records == (later,)  # type: ignore[arg-type]
    assert not isinstance(next(unread), bytes) and len(member.records.store) == 0
    assert member.complaints.take() == []


def test_an_announcement_that_is_refused_is_charged_to_its_author(member: Member) -> None:
    too_large = Announcement(RUN_ID, MALLORY.peer_id, bytes(16), 10_001, (bytes(16),))
    for announced in (too_large, replace(too_large, num_bytes=100, chunk_ids=()), replace(too_large, peer_id="alice")):
        member.records.receive_gossip(MALLORY.peer_id, seal_announcement(MALLORY, announced))
    refused = member.records.inbox.drain()
    assert [(each.reason, each.peer_id) for each in refused if isinstance(each, RefusedRecord)] == [
        (reason, MALLORY.peer_id) for reason in ("oversized", "limits", "wrong_peer")
    ]
    assert len(member.records.large) == len(member.records.store) == 0


def test_one_that_floods_the_inbox_pushes_nobody_out(member: Member) -> None:
    member.peers.update(frozenset({ALICE.peer_id, MALLORY.peer_id}), frozenset())
    honest = _record(ALICE)
    member.records.receive_gossip(ALICE.peer_id, honest)
    for number in range(50):
        member.records.receive_gossip(MALLORY.peer_id, _record(MALLORY, number))
    with suppress(PeerUnreachable):
        for number in range(50):
            # By way of repair, and in honest names.
            member.records.receive_repaired(MALLORY.peer_id, _record(ALICE, 1 + number), 3.0)
    waiting = drained(member.records.inbox)
    assert len(waiting) == 20 and waiting[0] == honest


@pytest.mark.parametrize("how", ["feed", "repair"])
def test_what_is_not_signed_is_refused_charged_to_the_helper_and_not_held(member: Member, how: str) -> None:
    forged = _record(ALICE)[:-1] + b"?"
    unread = member.records.feed.follow("bob")
    next(unread)
    for junk in (b"junk", forged, forged[:-1] + b"!"):
        with pytest.raises(PeerUnreachable, match="no honest peer holds"):
            if how == "feed":
                member.records.receive_gossip(MALLORY.peer_id, junk)
            else:
                member.records.receive_repaired(MALLORY.peer_id, junk, 3.0)
        assert member.records.store.has_seen(record_id(junk)), "not asked for again"
    assert len(member.records.store) == 0 and not isinstance(next(unread), bytes)
    assert member.complaints.take() == [(MALLORY.peer_id, Reason.BAD_GIFT)] * 3
    reasons = [each.reason for each in member.records.inbox.drain() if isinstance(each, RefusedRecord)]
    assert reasons == (["malformed", "bad_signature", "bad_signature"] if how == "feed" else []), "the exchange counts"


@pytest.mark.parametrize("is_proven", [False, True])
@pytest.mark.parametrize("kind", ["group", "offers", "conversation"])
def test_forgeries_take_nothing_of_the_budgets_of_whom_they_name(kind: str, is_proven: bool) -> None:
    """Anybody may name anybody as the author of bytes that state to be large."""
    slow = SafetySettings(groups_per_min=30, newcomer_groups_per_min=30)
    member = Member(NetworkSettings(inbox_records=20, shelf_records=20, safety=slow), OWN, Profile(), MANIFEST)
    member.peers.update(frozenset({ALICE.peer_id}), frozenset())
    member.records.trust({ALICE.peer_id} if is_proven else ())
    for number in range(700):
        body = Body(RUN_ID, ALICE.peer_id, kind, b"%d" % number)
        forged = msgspec.msgpack.encode(Envelope(SCHEMA_VERSION, msgspec.msgpack.encode(body), bytes(64)))
        with pytest.raises(PeerUnreachable):
            member.records.receive_gossip(f"helper {number}", forged)
    member.records.inbox.drain()
    member.records.receive_gossip(ALICE.peer_id, _record(ALICE))
    assert drained(member.records.inbox) == [_record(ALICE)]


def test_altered_copies_of_a_record_are_refused_and_charged_to_the_helper(member: Member) -> None:
    """Whoever heard a record could make any number of others of it: its signature does not cover the envelope."""
    record = _record(ALICE)
    member.records.receive_repaired(MALLORY.peer_id, record, 3.0)
    for number in range(9):
        # A field given twice: the last one counts.
        altered = b"\x84\xaeschema_version" + bytes([number]) + record[1:]
        assert altered[-len(record) + 1 :] == record[1:]
        with pytest.raises(PeerUnreachable, match="no honest peer holds"):
            member.records.receive_repaired(MALLORY.peer_id, altered, 3.0)
    assert drained(member.records.inbox) == [record] and len(member.records.store) == 1
    assert member.complaints.take() == [(MALLORY.peer_id, Reason.BAD_GIFT)] * 9
