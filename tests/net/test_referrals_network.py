"""Referrals between nodes with real daemons."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from swarm.net.membership.transport import MemberTransport
from swarm.net.records.large import SENT_ITSELF, SETTLED_S
from swarm.net.records.offers import describe
from swarm.net.records.stores import record_id
from swarm.net.records.wire import seal
from swarm.types import Completion, OfferedGroup, VerifiedGroup

from .records import IDENTITIES, make_group, opened, until

pytestmark = [pytest.mark.network, pytest.mark.slow]
NUM_LATE = 2
PATIENCE_S = 60.0


def a_group_of(author: MemberTransport) -> VerifiedGroup:
    """One that is larger than a referral."""
    manifest = author.manifest()
    assert manifest is not None
    texts = [Completion(" ".join(f"{97 * k + shift}" for k in range(3_000)), "stop") for shift in (0, 1)]
    group = replace(make_group(manifest.run_id, author.peer_id), created_at=time.time(), completions=tuple(texts))
    return opened(seal(IDENTITIES[author.peer_id], manifest.run_id, "group", group), manifest.run_id)


def test_who_asks_late_gets_a_group_from_those_who_asked_before(start: Callable[..., MemberTransport]) -> None:
    author = start("founder")
    members = [start(f"member-{k}", author.multiaddrs()) for k in range(SENT_ITSELF + NUM_LATE)]
    for member in members:
        until(lambda member=member: len(member.peers()) > SENT_ITSELF, "it knows enough members")  # type: ignore[misc]
    group = a_group_of(author)
    offer = describe(group, PATIENCE_S)
    assert offer is not None
    author.hold(group.record)

    def fetch(askers: list[MemberTransport]) -> None:
        for asker in askers:
            asker.pull(OfferedGroup(author.peer_id, offer), PATIENCE_S)
        for asker in askers:
            (arrival,) = until(asker.drain, "the group arrives", PATIENCE_S)
            assert isinstance(arrival, VerifiedGroup)
            assert record_id(arrival.record) == record_id(group.record)

    early, late = members[:-NUM_LATE], members[-NUM_LATE:]
    fetch(early)
    assert not any(member.counters().get("referred") for member in early)
    time.sleep(1.5 * SETTLED_S)  # from then on the author takes it that they have it
    fetch(late)
    assert [member.counters().get("referred") for member in late] == [1] * NUM_LATE
    assert not any(member.complaints() for member in members)
