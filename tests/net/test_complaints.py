from __future__ import annotations

import pytest

from swarm.net import guard as complaints_module
from swarm.net.guard import Complaints, Counters
from swarm.reasons import Reason


def test_they_are_taken_once_and_counted() -> None:
    counters = Counters()
    complaints = Complaints(counters)
    complaints.add("a", Reason.FLOOD)
    complaints.add("a", Reason.BAD_GIFT)
    assert complaints.take() == [("a", Reason.FLOOD), ("a", Reason.BAD_GIFT)] and complaints.take() == []
    assert counters.snapshot()["flood"] == 1


def test_names_that_are_thrown_away_do_not_make_a_node_forget_what_another_did() -> None:
    """All that is complained of in a round of a minute is booked together; junk of one name is thousands."""
    complaints = Complaints(Counters())
    for _ in range(20):
        complaints.add("withholds", Reason.WITHHELD)
    for _ in range(10_000):
        complaints.add("thrown away", Reason.BAD_REQUEST)
    taken = complaints.take()
    assert taken.count(("withholds", Reason.WITHHELD)) == 20 and len(taken) <= 20 + 256


def test_peers_are_bounded_and_those_with_most_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complaints_module, "MAX_PEERS", 8)
    complaints = Complaints(Counters())
    for number in range(100):
        complaints.add("withholds", Reason.WITHHELD)
        complaints.add(f"name {number}", Reason.BAD_REQUEST)
    taken = complaints.take()
    assert taken.count(("withholds", Reason.WITHHELD)) == 100 and len({peer_id for peer_id, _ in taken}) <= 8
