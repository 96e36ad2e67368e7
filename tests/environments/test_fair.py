"""Turns and places of a queue that many senders share."""

from __future__ import annotations

from swarm.environments.verification.fair import FairQueue


def drain(queue: FairQueue[str]) -> list[str]:
    taken = []
    while (item := queue.get()) is not None:
        taken.append(item)
    return taken


def test_senders_take_turns() -> None:
    queue: FairQueue[str] = FairQueue(10)
    for sender, item in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("c", "c2")):
        assert queue.put(sender, item) is None
    assert len(queue) == 6
    assert drain(queue) == ["a1", "b1", "c1", "a2", "c2", "a3"]
    assert len(queue) == 0


def test_whoever_has_most_places_loses_the_oldest_item() -> None:
    queue: FairQueue[str] = FairQueue(4)
    assert [queue.put("flood", f"f{number}") for number in range(4)] == [None] * 4
    assert queue.put("b", "b1") == "f0"
    assert queue.put("c", "c1") == "f1"
    assert queue.put("flood", "f4") == "f2"
    assert queue.put("b", "b2") in ("f3", "b1")
    assert len(queue) == 4


def test_new_names_do_not_push_out_those_who_wait() -> None:
    queue: FairQueue[str] = FairQueue(3)
    for sender in "abc":
        queue.put(sender, sender)
    assert [queue.put(f"name {number}", f"n{number}") for number in range(20)] == [f"n{number}" for number in range(20)]
    assert drain(queue) == ["a", "b", "c"]


def test_clearing() -> None:
    queue: FairQueue[str] = FairQueue(3)
    queue.put("a", "a")
    queue.clear()
    assert len(queue) == 0 and queue.get() is None
