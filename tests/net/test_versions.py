"""A swarm of two major versions: nothing is understood, and everybody is told."""

from __future__ import annotations

import pytest

from swarm.errors import Refusal
from swarm.net.config import NetworkSettings
from swarm.net.membership.member import Member, Profile
from swarm.net.membership.traffic import HEARD_FOR_S, MAX_PEERS, Versions
from swarm.net.records.identity import Identity
from swarm.net.records.wire import make_run_id, seal
from swarm.reasons import Reason
from swarm.types import SCHEMA_VERSION

from .records import make_group, of_version, sealed_manifest

FOUNDER, *OTHERS = (Identity.generate() for _ in range(4))
RUN_ID = make_run_id("demo", FOUNDER.peer_id)
NEWER = Refusal(Reason.SCHEMA_VERSION, "update this")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def record_of(identity: Identity, sequence: int = 0) -> bytes:
    return seal(identity, RUN_ID, "group", make_group(RUN_ID, identity.peer_id, sequence))


@pytest.mark.parametrize(("version", "advice"), [(SCHEMA_VERSION + 1, "here"), (SCHEMA_VERSION - 1, "there")])
def test_when_most_of_those_heard_speak_another_version_the_status_says_so(version: int, advice: str) -> None:
    member = Member(NetworkSettings(), Identity.generate(), Profile(), sealed_manifest(FOUNDER))
    first, second, third = OTHERS
    member.records.receive_gossip(first.peer_id, record_of(first))
    member.records.receive_gossip(second.peer_id, of_version(record_of(second), version))
    assert member.status().split == "", "one of two is not most"
    member.records.receive_gossip(third.peer_id, of_version(record_of(third), version))
    assert member.status().split == (
        f"2 of 3 peers heard lately cannot be understood: it speaks version {version} of the protocol, "
        f"this node version {SCHEMA_VERSION}: update swarm {advice}"
        + ("" if version > SCHEMA_VERSION else ", or use here the older one that the others have")
    )
    arrived = [getattr(arrival, "reason", None) for arrival in member.records.inbox.drain()]
    assert arrived == [None, "schema_version", "schema_version"], "and they are counted"
    member.records.receive_gossip(third.peer_id, record_of(third, 1))
    assert member.status().split == "", "it has been updated"


def test_what_is_of_another_version_or_kind_is_not_held_against_who_hands_it_on() -> None:
    member = Member(NetworkSettings(), Identity.generate(), Profile(), sealed_manifest(FOUNDER))
    author, helper = OTHERS[0], OTHERS[1].peer_id
    member.records.receive_repaired(helper, of_version(record_of(author), SCHEMA_VERSION + 1), 3.0)
    member.records.receive_repaired(
        helper, seal(author, RUN_ID, "conversation", make_group(RUN_ID, author.peer_id)), 3.0
    )  # type: ignore[arg-type]
    assert member.complaints.take() == [] and len(member.records.store) == 0
    assert member.counters.snapshot()["refused_repairs"] == 2


def test_what_was_heard_is_forgotten_and_bounded() -> None:
    clock = Clock()
    versions = Versions(clock)
    versions.refused("old", NEWER)
    versions.refused("old", Refusal(Reason.MALFORMED, "whatever"))
    assert versions.describe() == "1 of 1 peers heard lately cannot be understood: update this"
    clock.now += HEARD_FOR_S + 1
    assert versions.describe() == ""
    for number in range(MAX_PEERS + 10):
        versions.refused(f"name {number}", NEWER)
    assert versions.describe().startswith(f"{MAX_PEERS} of {MAX_PEERS} peers")
