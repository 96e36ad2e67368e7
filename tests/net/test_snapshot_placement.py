"""Which workers have a place in a learner's plan."""

from __future__ import annotations

import pytest

from swarm.net.counters import Counters
from swarm.net.snapshots import placement as placement_module
from swarm.net.snapshots.config import SnapshotSettings
from swarm.net.snapshots.placement import FORGET_AFTER_POLLS, IDLE_S, Placement
from swarm.net.snapshots.plan import LinkLimits, Place

LEARNER = "learner"
LINK = LinkLimits(2.0**20, 2.0**20)
"""Of the learner and all workers: the plan is one chain."""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def placed(*workers: str) -> tuple[Placement, Clock, Counters]:
    """A broadcast to these, who have asked in this order."""
    clock, counters = Clock(), Counters()
    placement = Placement(LEARNER, LINK, SnapshotSettings(poll_s=10.0), counters, clock)
    for worker in workers:
        assert placement.place_for(worker, LINK)
    placement.begin_broadcast()
    return placement, clock, counters


def place(placement: Placement, worker: str, *failed: str) -> Place:
    found = placement.place_for(worker, LINK, failed)
    assert found is not None
    return found


def test_a_worker_that_asks_has_a_place_at_once() -> None:
    placement, _, _ = placed()
    assert placement.root.feeds == ()
    assert place(placement, "a").sources == (LEARNER,) and placement.root.feeds == ("a",)
    assert place(placement, "b").sources == ("a", LEARNER)
    assert placement.begin_broadcast().keys() == {"a", "b"}


def test_a_worker_that_has_not_asked_for_long_is_placed_no_more() -> None:
    placement, clock, _ = placed("a", "b")
    clock.now = FORGET_AFTER_POLLS * 10.0 + 1
    place(placement, "b")
    assert placement.begin_broadcast().keys() == {"b"}
    placement.forget("b")
    assert placement.begin_broadcast() == {}


def test_a_source_that_its_own_receiver_complains_of_feeds_nobody_for_a_while() -> None:
    placement, clock, counters = placed("a", "b")
    (head,) = placement.root.feeds
    tail = "b" if head == "a" else "a"
    moved = place(placement, tail, head)
    assert moved.sources == (LEARNER,) and place(placement, head).num_children == 0
    assert counters.snapshot() == {"idle_sources": 1}
    place(placement, tail, head)
    assert counters.snapshot() == {"idle_sources": 1}, "once is enough"
    clock.now = IDLE_S + 1
    place(placement, head), place(placement, tail)
    assert placement.begin_broadcast()[head].num_children == 1


def test_only_the_receiver_of_a_source_is_believed_and_one_that_complains_itself_is_excused() -> None:
    placement, _, counters = placed("a", "b", "c")
    chain = [placement.root.feeds[0]]
    while feeds := placement.plan.places[chain[-1]].feeds:
        chain.append(feeds[0])
    first, second, third = chain
    place(placement, third, first)
    assert counters.snapshot() == {}, "it was not fed by that one"
    place(placement, first, LEARNER)
    assert counters.snapshot() == {}, "the learner is no worker"
    place(placement, second, first)
    assert counters.snapshot() == {}, "the first got nothing itself, so it had nothing to give"
    place(placement, first)
    place(placement, second, first)
    assert counters.snapshot() == {"idle_sources": 1}


def test_when_all_places_are_taken_only_those_never_tried_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_module, "MAX_WORKERS", 2)
    placement, clock, _ = placed("tried")
    clock.now = 1.0
    place(placement, "untried")
    clock.now = 2.0
    place(placement, "new")
    assert placement.begin_broadcast().keys() == {"tried", "new"}
    assert placement.place_for("one too many", LINK) is None
