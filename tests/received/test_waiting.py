"""Groups that nobody has graded yet are bounded, and who sends most makes room first."""

from __future__ import annotations

from swarm.reasons import Reason
from swarm.received.intake import Waiting
from swarm.types import Offer, OfferedGroup, ReceivedGroup
from tests.example_groups import rollout_group


def _received(
    peer_id: str, number: int, num_bytes: int = 1, account: str | None = None, at: float = 0.0
) -> ReceivedGroup:
    return ReceivedGroup(
        f"{peer_id}-{number}", rollout_group(peer_id, number), peer_id if account is None else account, num_bytes, at
    )


def _offered(peer_id: str, number: int) -> ReceivedGroup:
    offer = Offer(bytes(16), number.to_bytes(16), 3_000, "gcd", 2, 0.5, 0.5, bytes(8), 60)
    return ReceivedGroup(offer.content_id.hex(), OfferedGroup(peer_id, offer), peer_id, 1)


def _fill(waiting: Waiting, *groups: ReceivedGroup) -> list[tuple[str, Reason]]:
    left = [gone for group in groups for gone in waiting.enter(group)]
    return [(group.content_id, reason) for group, reason in left]


def _ids(waiting: Waiting) -> list[str]:
    return [group.content_id for group in waiting]


def test_an_offer_is_no_group_by_whatever_key() -> None:
    waiting = Waiting(100)
    offered, group = _offered("author", 1), _received("author", 2)
    assert _fill(waiting, offered, group) == []
    assert offered.key in waiting and offered.content_id not in waiting
    assert group.key in waiting and len(waiting) == 1, "the offer is not here"


def test_a_flood_displaces_itself() -> None:
    waiting = Waiting(100, max_groups=4)
    honest = [_received("honest", k) for k in range(2)]
    flood = [_received("flood", k) for k in range(9)]
    left = _fill(waiting, *honest, *flood)
    assert left == [(f"flood-{k}", Reason.NOT_NEEDED) for k in range(7)]
    assert _ids(waiting) == ["honest-0", "honest-1", "flood-7", "flood-8"]


def test_the_newest_of_one_peer_stay() -> None:
    waiting = Waiting(2)
    assert _fill(waiting, *(_received("peer", k) for k in range(4))) == [
        ("peer-0", Reason.PEER_QUOTA),
        ("peer-1", Reason.PEER_QUOTA),
    ]


def test_what_is_being_graded_counts_and_cannot_be_displaced() -> None:
    waiting = Waiting(2)
    grading = [_received("peer", 0), _received("peer", 1)]
    assert _fill(waiting, *grading) == []
    for each in grading:
        waiting.grade(each.key)
    new = _received("peer", 2)
    assert waiting.enter(new) == [(new, Reason.PEER_QUOTA)]
    assert _ids(waiting) == [] and len(waiting) == 2
    waiting.remove(grading[0].key)
    assert waiting.enter(new) == [] and _ids(waiting) == ["peer-2"]


def test_those_that_waited_too_long_leave() -> None:
    waiting = Waiting(9, max_age_s=10.0)
    _fill(waiting, _received("peer", 0, at=0.0), _received("peer", 1, at=5.0))
    assert [(gone.content_id, reason) for gone, reason in waiting.expire(12.0)] == [("peer-0", Reason.EXPIRED)]
    assert _ids(waiting) == ["peer-1"]
