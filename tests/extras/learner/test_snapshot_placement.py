"""Which workers have a slot in a learner's plan."""

from __future__ import annotations

from itertools import pairwise

import pytest

from swarm.extras.learner.snapshots import plan as placement_module
from swarm.extras.learner.snapshots.plan import (
    FORGET_AFTER_POLLS,
    IDLE_S,
    MAX_REPORTS,
    NUM_REPORTERS,
    REPORT_S,
    LinkLimits,
    Placement,
    Slot,
)
from swarm.net.config import SnapshotSettings
from swarm.net.guard import Counters

LEARNER = "learner"
LINK = LinkLimits(2.0**20, 2.0**20)
"""Of the learner and all workers: the plan is one chain."""
WIDE = LinkLimits(2.0**21, 2.0**20)
"""Of all workers: the plan is a tree in which each feeds two."""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def placed(*workers: str, limits: LinkLimits = LINK) -> tuple[Placement, Clock, Counters]:
    """A broadcast to these, who have asked in this order."""
    clock, counters = Clock(), Counters()
    placement = Placement(LEARNER, LINK, SnapshotSettings(poll_s=10.0), counters, clock)
    broadcast(placement, *workers, limits=limits)
    return placement, clock, counters


def broadcast(placement: Placement, *workers: str, limits: LinkLimits = LINK) -> dict[str, Slot]:
    """The next one, to these, who ask before."""
    for worker in workers:
        slot(placement, worker, limits=limits)
    return placement.begin_broadcast()


def slot(placement: Placement, worker: str, *failed: str, limits: LinkLimits = LINK) -> Slot:
    found = placement.slot_for(worker, limits, failed)
    assert found is not None
    return found


def chain_of(placement: Placement) -> list[str]:
    """The workers from the learner on, each fed by the one before."""
    chain = list(placement.root.feeds)
    while feeds := placement.plan.slots[chain[-1]].feeds:
        chain += feeds
    return chain


def test_a_worker_that_asks_has_a_place_at_once() -> None:
    placement, _, _ = placed()
    assert placement.root.feeds == ()
    assert slot(placement, "a").sources == (LEARNER,) and placement.root.feeds == ("a",)
    assert slot(placement, "b").sources == ("a", LEARNER)
    assert placement.begin_broadcast().keys() == {"a", "b"}


def test_a_worker_that_has_not_asked_for_long_is_placed_no_more() -> None:
    placement, clock, _ = placed("a", "b")
    clock.now = FORGET_AFTER_POLLS * 10.0 + 1
    slot(placement, "b")
    assert placement.begin_broadcast().keys() == {"b"}
    placement.forget("b")
    assert placement.begin_broadcast() == {}


def test_one_report_moves_its_maker_and_the_source_comes_last() -> None:
    placement, clock, counters = placed("a", "b")
    head, tail = chain_of(placement)
    assert slot(placement, tail, head).sources == (LEARNER,) and chain_of(placement) == [tail, head]
    assert counters.snapshot() == {"reported_sources": 1}, "it may be a lie, so that the source keeps its use"
    assert slot(placement, head).num_children == 1
    clock.now = REPORT_S
    assert [*broadcast(placement, head, tail)] == [head, tail], "it is forgotten"


def test_a_dead_relay_has_no_child_in_the_next_broadcast() -> None:
    placement, _, _ = placed("dead", "a", "b", "c")
    assert chain_of(placement)[0] == "dead"
    slot(placement, "a", "dead")
    placement.begin_broadcast()
    assert chain_of(placement)[-1] == "dead"


def test_a_source_that_several_children_report_feeds_nobody_for_a_while() -> None:
    workers = ("a", "b", "c", "d")
    placement, clock, counters = placed(*workers, limits=WIDE)
    (head,) = placement.root.feeds
    children = placement.plan.slots[head].feeds
    assert len(children) == NUM_REPORTERS
    for child in children:
        assert slot(placement, child, head, limits=WIDE).sources[0] != head
    assert counters.snapshot() == {"reported_sources": 2, "idle_sources": 1}
    assert slot(placement, head, limits=WIDE).num_children == 0
    clock.now = IDLE_S - 1
    assert broadcast(placement, *workers, limits=WIDE)[head].num_children == 0
    clock.now = IDLE_S
    assert broadcast(placement, *workers, limits=WIDE)[head].num_children == 2


def test_only_the_receiver_of_a_source_in_this_broadcast_is_heard_and_once() -> None:
    placement, _, counters = placed("a", "b", "c")
    first, second, third = chain_of(placement)
    slot(placement, third, first)
    assert counters.snapshot() == {}, "it was not fed by that one"
    slot(placement, first, LEARNER)
    assert counters.snapshot() == {}, "the learner is no worker"
    late = slot(placement, "late")
    slot(placement, "late", *late.sources)
    assert counters.snapshot() == {}, "it was not there when the broadcast began"
    slot(placement, second, first)
    slot(placement, second, *placement.plan.slots[second].sources)
    assert counters.snapshot() == {"reported_sources": 1}, "one report in a broadcast"


def test_a_source_that_got_nothing_itself_is_excused() -> None:
    """Of nine in a tree, the two children of one report it, after it has reported its own source."""
    workers = [str(number) for number in range(9)]
    placement, _, counters = placed(*workers, limits=WIDE)
    (head,) = placement.root.feeds
    middle = placement.plan.slots[head].feeds[0]
    children = placement.plan.slots[middle].feeds
    slot(placement, middle, head, limits=WIDE)
    for child in children:
        slot(placement, child, middle, limits=WIDE)
    assert counters.snapshot() == {"reported_sources": 3}


def feeding(placement: Placement, workers: list[str]) -> int:
    return sum(placement.plan.slots[worker].num_children > 0 for worker in workers)


def test_false_reports_of_one_worker_take_no_other_out_of_the_tree() -> None:
    honest = [str(number) for number in range(20)]
    placement, clock, counters = placed(*honest, "liar")
    for _ in range(10):
        rate = placement.plan.bytes_per_s
        for _ in range(50):
            clock.now += 0.02
            slot(placement, "liar", placement.plan.slots["liar"].sources[0])
        assert feeding(placement, honest) == len(honest) and placement.plan.bytes_per_s == rate
        broadcast(placement, *honest, "liar")
    assert counters.snapshot() == {"reported_sources": MAX_REPORTS}
    assert (leaf := slot(placement, "liar")).num_children == 0 and leaf.feeds == ()
    clock.now += REPORT_S
    assert broadcast(placement, *honest, "liar")["liar"].num_children == 1, "it is believed again"


def test_liars_that_agree_cost_few_others_their_places() -> None:
    honest, liars = [str(number) for number in range(20)], ["x", "y", "z"]
    placement, clock, counters = placed(*honest, *liars, limits=WIDE)
    for _ in range(100):
        clock.now += 1.0
        for liar in liars:
            slot(placement, liar, placement.plan.slots[liar].sources[0], limits=WIDE)
        broadcast(placement, *honest, *liars, limits=WIDE)
    assert counters.snapshot()["reported_sources"] <= len(liars) * MAX_REPORTS
    assert counters.snapshot().get("idle_sources", 0) <= len(liars) * MAX_REPORTS // NUM_REPORTERS


def test_reports_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_module, "MAX_KEPT", 2)
    placement, _, counters = placed("a", "b", "c", "d")
    for source, worker in pairwise(chain_of(placement)):
        slot(placement, worker, source)
    assert counters.snapshot()["reported_sources"] == 3 and len(placement._reports.pairs(0.0)) == 2


def test_when_all_places_are_taken_only_those_never_tried_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_module, "MAX_WORKERS", 2)
    placement, clock, _ = placed("tried")
    clock.now = 1.0
    slot(placement, "untried")
    clock.now = 2.0
    slot(placement, "new")
    assert placement.begin_broadcast().keys() == {"tried", "new"}
    assert placement.slot_for("one too many", LINK) is None
