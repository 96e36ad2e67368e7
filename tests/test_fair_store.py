from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings, strategies as st

from swarm.fair_store import FairQueue, FairStore, Share
from swarm.lru import LruDict


@dataclass
class Item:
    key: int
    value: str
    owners: tuple[str, ...]
    num_bytes: int
    is_pinned: bool = False


@dataclass
class NaiveStore:
    """The rules of `FairStore` on a plain list, everything being counted again each time."""

    max_items: float
    max_bytes: float
    shares: tuple[Share, ...]
    items: list[Item] = field(default_factory=list)
    """Oldest first."""
    turns: list[str] = field(default_factory=list)
    """Owners of the first level in the order in which they are served."""

    def add(self, new: Item) -> list[tuple[str, str]]:
        self.remove(new.key)
        if new.num_bytes > self.max_bytes:
            return [(new.value, "bytes")]
        self.items.append(new)
        self.follow_turns()
        left: list[tuple[str, str]] = []
        for level in reversed(range(len(self.shares))):
            while new in self.items and self.is_over_share(level, new.owners[level]):
                left.append((self.evict(level, new.owners[level], new), "share"))
        while sum(item.num_bytes for item in self.items) > self.max_bytes:
            sizes = Counter({owner: 0 for owner in self.turns})
            for item in self.items:
                sizes[item.owners[0]] += item.num_bytes
            left.append((self.evict(0, self.most(sizes, new), new), "bytes"))
        while sum(not item.is_pinned for item in self.items) > self.max_items:
            sizes = Counter({owner: 0 for owner in self.turns})
            for item in self.items:
                sizes[item.owners[0]] += not item.is_pinned
            left.append((self.evict(0, self.most(sizes, new), new), "items"))
        return left

    def most(self, sizes: Counter[str], new: Item) -> str:
        most = max(sizes.values())
        return new.owners[0] if sizes[new.owners[0]] == most else next(o for o in self.turns if sizes[o] == most)

    def is_over_share(self, level: int, owner: str) -> bool:
        own = [item for item in self.items if item.owners[level] == owner]
        share = self.shares[level]
        return len(own) > 1 and (len(own) > share.max_items or sum(i.num_bytes for i in own) > share.max_bytes)

    def evict(self, level: int, owner: str, new: Item) -> str:
        free = [item for item in self.items if item.owners[level] == owner and not item.is_pinned]
        return self.remove((free or [new])[0].key)

    def remove(self, key: int) -> str:
        value = next((item.value for item in self.items if item.key == key), "")
        self.items = [item for item in self.items if item.key != key]
        self.follow_turns()
        return value

    def follow_turns(self) -> None:
        owners = list(dict.fromkeys(item.owners[0] for item in self.items))
        self.turns = [owner for owner in self.turns if owner in owners]
        self.turns += [owner for owner in owners if owner not in self.turns]

    def pop_next(self) -> str | None:
        for owner in self.turns:
            for item in self.items:
                if item.owners[0] == owner and not item.is_pinned:
                    value = self.remove(item.key)
                    if owner in self.turns:
                        self.turns.remove(owner)
                        self.turns.append(owner)
                    return value
        return None


OWNERS = st.sampled_from("abcd")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 30), OWNERS, st.sampled_from("pq"), st.integers(0, 12)),
        st.tuples(st.just("add"), st.integers(0, 10**6), OWNERS, st.sampled_from("pq"), st.integers(0, 12)),
        st.tuples(st.sampled_from(["pop", "pin"]), st.integers(0, 30)),
        st.tuples(st.sampled_from(["pop", "pin"]), st.just(-1)),
        st.tuples(st.sampled_from(["next", "charge", "clear"])),
    ),
    max_size=80,
)
COUNTS = st.one_of(st.integers(1, 8), st.just(math.inf))
SIZES = st.one_of(st.integers(1, 40), st.just(math.inf))
SHARES = st.lists(st.builds(Share, COUNTS, SIZES), max_size=2)


@settings(max_examples=500)
@given(COUNTS, SIZES, SHARES, STEPS)
@example(2, math.inf, [], [("add", n, "ab"[n % 2], "p", 0) for n in range(4)])
def test_the_store_does_what_a_naive_one_does(
    max_items: float, max_bytes: float, shares: list[Share], steps: list[tuple[object, ...]]
) -> None:
    store = FairStore[int, str](max_items, max_bytes, *shares)
    naive = NaiveStore(max_items, max_bytes, tuple(shares) or (Share(),))
    for step in steps:
        apply(store, naive, *step)
        assert list(store) == [item.key for item in naive.items] == list(reversed(list(reversed(store))))
        assert store.values() == [item.value for item in naive.items]
        assert len(store) == len(naive.items) and store.num_bytes == sum(item.num_bytes for item in naive.items)
        assert sum(not item.is_pinned for item in naive.items) <= max_items and store.num_bytes <= max_bytes
        assert store.has_room(3) == (
            sum(not item.is_pinned for item in naive.items) < max_items and store.num_bytes + 3 <= max_bytes
        )
    while (value := store.pop_next()) is not None:
        assert value == naive.pop_next()
    for key in list(store):
        store.pop(key)
    assert store.num_bytes == 0 and not any(store._levels), "nothing is kept of owners that hold nothing"


def apply(store: FairStore[int, str], naive: NaiveStore, what: object, *arguments: object) -> None:
    if what == "add":
        key, account, peer, num_bytes = arguments
        owners = (account, peer)[: len(naive.shares)]
        value = f"{key} of {owners}"
        new = Item(key, value, owners, num_bytes)  # type: ignore[arg-type]
        assert store.add(key, value, *owners, num_bytes=num_bytes) == naive.add(new)  # type: ignore[arg-type]
    elif what == "next":
        assert store.pop_next() == naive.pop_next()
    elif what == "charge":
        for item in naive.items:
            item.owners = ("c", *item.owners[1:]) if item.key % 2 else item.owners
        naive.turns = []
        naive.follow_turns()
        owners_by_value = {item.value: item.owners for item in naive.items}
        store.charge(owners_by_value.__getitem__)
    elif what == "clear":
        store.clear()
        naive.items = []
        naive.follow_turns()
    else:
        (key,) = arguments
        key = next(iter(store), 0) if key == -1 else key
        item = next((item for item in naive.items if item.key == key), None)
        assert (key in store) == (item is not None)
        if item is None:
            assert store.get(key) is None  # type: ignore[arg-type]
            with pytest.raises(KeyError):
                store.pop(key) if what == "pop" else store.pin(key)  # type: ignore[arg-type]
        elif what == "pop":
            assert store[key] == store.pop(key) == naive.remove(item.key)  # type: ignore[index,arg-type]
        else:
            item.is_pinned = True
            assert store.get(key) == store.pin(key) == item.value  # type: ignore[arg-type]


def test_a_flood_displaces_itself() -> None:
    store = FairStore[str, str](4)
    assert [store.add(f"f{number}", f"f{number}", "flood") for number in range(4)] == [[]] * 4
    assert store.add("b1", "b1", "b") == [("f0", "items")]
    assert store.add("f4", "f4", "flood") == [("f1", "items")]
    assert store.values() == ["f2", "f3", "b1", "f4"]


def test_new_owners_do_not_displace_those_who_wait() -> None:
    store = FairStore[str, str](3)
    for owner in "abc":
        store.add(owner, owner, owner)
    for number in range(20):
        assert store.add(f"n{number}", f"n{number}", f"name {number}") == [(f"n{number}", "items")]
    assert store.values() == ["a", "b", "c"]


def test_pinned_items_are_charged_but_stay() -> None:
    store = FairStore[str, str](math.inf, 10, Share(max_items=2))
    store.add("a", "a", "x", num_bytes=4)
    store.pin("a")
    store.add("b", "b", "x", num_bytes=4)
    assert store.add("c", "c", "x", num_bytes=4) == [("b", "share")] and list(store) == ["a", "c"]
    store.pin("c")
    assert store.add("d", "d", "x", num_bytes=1) == [("d", "share")], "the owner has nothing else that could go"
    assert store.add("e", "e", "y", num_bytes=3) == [("e", "bytes")], "nor has the owner with the most"


def test_what_is_pinned_from_the_start_takes_no_place_of_those_who_wait() -> None:
    store = FairStore[str, str](1, 10, Share(max_items=2))
    store.add("a", "a", "x", num_bytes=4)
    assert store.add("b", "b", "x", num_bytes=4, is_pinned=True) == [] and list(store) == ["a", "b"]
    assert store.add("c", "c", "x", num_bytes=1, is_pinned=True) == [("a", "share")] and list(store) == ["b", "c"]
    assert store.add("d", "d", "x", is_pinned=True) == [("d", "share")] and store.num_bytes == 5
    assert store.add("e", "e", "y", num_bytes=6, is_pinned=True) == [("e", "bytes")] and list(store) == ["b", "c"]


def test_an_item_is_always_within_its_owners_share() -> None:
    store = FairStore[str, str](math.inf, 100, Share(max_items=0, max_bytes=5))
    assert store.add("a", "a", "x", num_bytes=50) == []
    assert store.add("b", "b", "x", num_bytes=1) == [("a", "share")]
    assert store.add("c", "c", "x", num_bytes=101) == [("c", "bytes")] and store.values() == ["b"]


def test_owners_are_given_for_all_levels() -> None:
    store = FairStore[str, str](1, 1, Share(), Share())
    with pytest.raises(ValueError, match="2 levels of owners, got 1"):
        store.add("a", "a", "x")
    assert store.add("a", "a") == []


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


def test_whoever_has_most_items_in_a_queue_loses_the_oldest() -> None:
    queue: FairQueue[str] = FairQueue(4)
    assert [queue.put("flood", f"f{number}") for number in range(4)] == [None] * 4
    assert queue.put("b", "b1") == "f0"
    assert queue.put("c", "c1") == "f1"
    assert queue.put("flood", "f4") == "f2"
    assert queue.put("b", "b2") == "b1"
    assert len(queue) == 4


def test_clearing_a_queue() -> None:
    queue: FairQueue[str] = FairQueue(3)
    queue.put("a", "a")
    queue.clear()
    assert len(queue) == 0 and queue.get() is None


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from(["put", "get", "read", "del", "default"]), st.integers(0, 8), st.integers())),
)
def test_an_lru_dict_keeps_what_was_used_last(capacity: int, steps: list[tuple[str, int, int]]) -> None:
    cache, naive = LruDict[int, int](capacity), list[tuple[int, int]]()
    for what, key, value in steps:
        known = dict(naive)
        if what == "put":
            naive = [entry for entry in naive if entry[0] != key] + [(key, value)]
            assert cache.put(key, value) == (naive.pop(0) if len(naive) > capacity else None)
        elif what == "get":
            assert cache.get(key) == known.get(key)
        elif what == "read" and key in known:
            assert cache[key] == known[key]
        elif what == "del":
            assert cache.pop(key, None) == known.get(key)
            naive = [entry for entry in naive if entry[0] != key]
        elif what == "default":
            assert cache.setdefault(key, value) == known.get(key, value)
            naive = ([entry for entry in naive if entry[0] != key] + [(key, known.get(key, value))])[-capacity:]
        if what in ("get", "read") and key in known:
            naive = [entry for entry in naive if entry[0] != key] + [(key, known[key])]
        assert list(cache.items()) == naive and list(cache.values()) == [value for _, value in naive]
        assert len(cache) == len(naive) and all((key in cache) == (key in dict(naive)) for key in range(9))
