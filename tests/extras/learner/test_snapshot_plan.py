"""Who gets a snapshot from whom."""

from __future__ import annotations

import math
from collections import Counter

import msgspec
import pytest
from hypothesis import given, strategies as st

from swarm.extras.learner.snapshots.messages import next_version
from swarm.extras.learner.snapshots.plan import MAX_SOURCES, LinkLimits, RelayPlan
from swarm.types import ChunkList, SnapshotManifest

LEARNER = "learner"
Rate = float | None


def plan(up: Rate, workers: list[tuple[Rate, Rate]], fan_out: int = 2) -> RelayPlan:
    limits = {f"w{index}": LinkLimits(*each) for index, each in enumerate(workers)}
    return RelayPlan(LEARNER, LinkLimits(up), limits, fan_out)


def depths(made: RelayPlan) -> list[int]:
    """Hops from the learner to each, sorted."""
    found = []
    for worker in made.slots:
        depth, at = 0, worker
        while at != LEARNER:
            at, depth = made.slots[at].sources[0], depth + 1
            assert depth <= len(made.slots), "everybody's source leads to the learner"
        found.append(depth)
    return sorted(found)[1:]


def fed(made: RelayPlan) -> Counter[str]:
    return Counter(slot.sources[0] for slot in made.slots.values() if slot.sources)


def test_a_fast_learner_starts_as_many_chains_as_its_uplink_carries() -> None:
    made = plan(4.0, [(1.0, 1.0)] * 32)
    assert made.bytes_per_s == 1.0
    assert depths(made) == sorted([*range(1, 9)] * 4)
    assert fed(made)[LEARNER] == 4 and max(count for worker, count in fed(made).items() if worker != LEARNER) == 1
    for worker, slot in made.slots.items():
        assert worker == LEARNER or (slot.sources[-1] == LEARNER and len(slot.sources) <= MAX_SOURCES)


def test_a_slow_learner_feeds_one_and_the_rest_are_a_tree() -> None:
    made = plan(1.0, [(3.0, 3.0)] * 13)
    assert made.bytes_per_s == 1.0
    assert depths(made) == [1, *[2] * 3, *[3] * 9]
    assert fed(made)[LEARNER] == 1 and max(fed(made).values()) == 3


def test_the_suspected_come_after_others_that_feed_as_many() -> None:
    one, three = LinkLimits(1.0, 3.0), LinkLimits(3.0, 3.0)
    made = RelayPlan(LEARNER, one, {"big": three, "a": one, "b": one}, 2, suspected={"big", "a"})
    assert made.slots[LEARNER].feeds == ("big",) and made.slots["big"].feeds == ("b", "a")


def test_who_is_kept_apart_from_a_source_gets_another_one() -> None:
    one, three = LinkLimits(1.0, 3.0), LinkLimits(3.0, 3.0)
    workers = {"big": three, "a": one, "b": one}
    made = RelayPlan(LEARNER, one, workers, 2, apart={("a", "big")})
    assert made.slots["big"].feeds == ("b",) and made.slots["b"].feeds == ("a",)
    made = RelayPlan(LEARNER, one, workers, 2, apart={("a", "big"), ("a", "b")})
    assert made.slots["a"].sources == (LEARNER,) and made.slots["big"].feeds == ("b",)


def test_those_who_can_feed_nobody_come_last() -> None:
    made = plan(2.0, [(0.1, 1.0)] * 3 + [(4.0, 1.0)] + [(4.0, 0.2)])
    assert made.bytes_per_s == 1.0
    assert made.slots["w3"].sources == (LEARNER,)
    assert all(worker in (LEARNER, "w3") for worker in fed(made))


def test_without_limits_a_node_feeds_as_many_as_configured() -> None:
    made = plan(None, [(None, None)] * 9, fan_out=3)
    assert made.bytes_per_s is None
    assert depths(made) == [1] * 3 + [2] * 6


def test_when_uplinks_are_too_thin_it_goes_slower_but_to_all() -> None:
    made = plan(1.0, [(0.01, None)] * 4)
    assert made.bytes_per_s == 0.25 and depths(made) == [1] * 4


@pytest.mark.parametrize("up", [1.0, None])
def test_nobody_to_give_to(up: Rate) -> None:
    assert plan(up, []).slots[LEARNER].sources == ()


@pytest.mark.parametrize("bad", [1e-320, 1.0, 0.0, -1.0, 2.0**18 - 1, 1e16, math.nan, math.inf, -math.inf])
def test_limits_of_strangers_are_refused_by_their_type(bad: float) -> None:
    decode = msgspec.msgpack.Decoder(LinkLimits).decode
    assert decode(msgspec.msgpack.encode(LinkLimits(2.0**18, None))) == LinkLimits(2.0**18)
    for limits in (LinkLimits(bad), LinkLimits(None, bad)):
        with pytest.raises(msgspec.ValidationError):
            decode(msgspec.msgpack.encode(limits))


def test_no_rate_is_too_strange_to_plan_with() -> None:
    assert plan(1e6, [(1e-320, 1e6), (1e308, 1e-320)]).slots.keys() == {LEARNER, "w0", "w1"}


def test_those_who_were_tried_come_before_any_claim_and_the_idle_feed_nobody() -> None:
    workers = {"boaster": LinkLimits(1e12), "old": LinkLimits(2.0), "idle": LinkLimits(1e9), "new": LinkLimits(1.0)}
    made = RelayPlan(LEARNER, LinkLimits(1.0), workers, 2, tried={"old"}, idle={"idle"})
    assert made.slots[LEARNER].feeds == ("old",) and made.bytes_per_s == 1.0
    assert made.slots["old"].feeds == ("boaster", "new") and made.slots["idle"].num_children == 0
    assert made.slots["idle"].sources[0] == "boaster", "those come last"
    # One stranger alone could otherwise say at what rate all others are to get it.
    slow = {"stranger": LinkLimits(0.001, 0.001), "old": LinkLimits(2.0, 2.0)}
    assert RelayPlan(LEARNER, LinkLimits(1.0), slow, 2, tried={"old"}).bytes_per_s == 1.0


rates = st.one_of(st.none(), st.floats(0.01, 100.0))


@given(rates, st.lists(st.tuples(rates, rates), max_size=40), st.integers(1, 4))
def test_everyone_has_a_place_and_nobody_feeds_more_than_he_can(
    up: Rate, workers: list[tuple[Rate, Rate]], fan_out: int
) -> None:
    made = plan(up, workers, fan_out)
    assert len(depths(made)) == len(workers)
    for peer, count in fed(made).items():
        # Who is left over when all slots are taken asks the learner, who sends him on to who has room.
        assert count <= made.slots[peer].num_children or peer == LEARNER
    if made.bytes_per_s is not None and up is not None:
        assert made.bytes_per_s <= up


def manifests(*changes: int | None) -> dict[int, SnapshotManifest]:
    """Versions 1, 2, ... of 100 bytes, with changes of so many bytes from the one before."""

    def chunks(num_bytes: int) -> ChunkList:
        return ChunkList(num_bytes, 100, ())

    return {
        version: SnapshotManifest("run", LEARNER, version, b"", chunks(100))
        if change is None
        else SnapshotManifest("run", LEARNER, version, b"", chunks(100), version - 1, chunks(change))
        for version, change in enumerate(changes, 1)
    }


def test_the_newest_is_taken_and_what_was_begun_is_finished() -> None:
    known = manifests(None, None, None)
    assert next_version(known, -1, None, 2) == 3 and next_version(known, 3, None, 2) is None
    assert [next_version(known, -1, current, 2) for current in (1, 2, 3)] == [3, 2, 3]
    assert [next_version(known, -1, current, 1) for current in (1, 2, 3)] == [3, 3, 3]
    assert next_version(known, -1, 1, 3) == 1


def test_several_changes_are_taken_in_turn_when_they_are_less_than_the_whole() -> None:
    known = manifests(None, 30, 30, 30)
    assert [next_version(known, have, None, 2) for have in (-1, 1, 2, 3, 4)] == [4, 2, 3, 4, None]
    assert next_version(manifests(None, 40, 40, 40), 1, None, 2) == 4
    assert next_version(manifests(None, 30, None, 30), 1, None, 2) == 4, "the chain is broken"
