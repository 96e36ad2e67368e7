from __future__ import annotations

from hypothesis import given, strategies as st

from swarm.net.records import stores
from swarm.net.records.stores import RecordStore, record_id


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_records_are_held_by_content_for_their_time() -> None:
    clock = Clock()
    store = RecordStore(10, 1_000, 60.0, clock)
    assert store.add(b"first") and not store.add(b"first")
    clock.now += 59
    assert store.get(record_id(b"first")) == b"first"
    clock.now += 1
    assert store.get(record_id(b"first")) is None and len(store) == 0 and store.num_bytes == 0
    # Forgotten, but not news.
    assert store.has_seen(record_id(b"first")) and not store.add(b"first")


def test_an_id_can_be_noted_without_its_record() -> None:
    store = RecordStore(10, 1_000, 60.0, Clock())
    assert store.mark_seen(record_id(b"junk")) and not store.mark_seen(record_id(b"junk"))
    assert not store.add(b"junk") and store.get(record_id(b"junk")) is None and store.listing(60.0, 0.0, 10) == []


def test_age_travels_along_so_that_a_record_does_not_go_round_for_ever() -> None:
    clock = Clock()
    store = RecordStore(10, 1_000, 60.0, clock)
    store.add(b"late", age_s=50.0)
    (held,) = store.listing(60.0, 0.0, 10)
    assert held.age_s == 50.0
    clock.now += 11
    assert store.listing(60.0, 0.0, 10) == [] and store.get(record_id(b"late")) is None
    assert store.add(b"too late", age_s=60.0) and store.get(record_id(b"too late")) is None
    assert store.add(b"from the future", age_s=-1.0) and store.get(record_id(b"from the future")) is None


def test_the_listing_has_the_latest_first_between_two_ages() -> None:
    clock = Clock()
    store = RecordStore(10, 1_000, 60.0, clock)
    for name in (b"a", b"b", b"c", b"d"):
        store.add(name, listed=name != b"b")
        clock.now += 10
    names = {record_id(name): name for name in (b"a", b"b", b"c", b"d")}
    assert [names[held.record_id] for held in store.listing(60.0, 0.0, 10)] == [b"d", b"c", b"a"]
    assert [names[held.record_id] for held in store.listing(40.0, 15.0, 10)] == [b"c"]
    assert [names[held.record_id] for held in store.listing(60.0, 0.0, 1)] == [b"d"]
    assert store.get(record_id(b"b")) == b"b"


@given(st.lists(st.tuples(st.binary(max_size=30), st.floats(-1, 70), st.floats(0, 30)), max_size=40))
def test_bounds_hold_whatever_comes(puts: list[tuple[bytes, float, float]]) -> None:
    clock = Clock()
    store = RecordStore(5, 60, 60.0, clock)
    for record, age_s, pause_s in puts:
        store.add(record, age_s)
        clock.now += pause_s
        held = store.listing(60.0, 0.0, 100)
        assert len(held) <= len(store) <= 5 and store.num_bytes <= 60
        assert sum(entry.num_bytes for entry in held) <= store.num_bytes
        assert all(0 <= entry.age_s < 60 and store.get(entry.record_id) is not None for entry in held)


def test_memory_of_ids_is_bounded(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(stores, "SEEN_RECORDS", 2)
    store = RecordStore(10, 1_000, 60.0, Clock())
    assert [store.add(name) for name in (b"a", b"b", b"c", b"b", b"a")] == [True, True, True, False, True]


def test_who_puts_most_on_it_makes_room() -> None:
    store = RecordStore(10, 1_000, 60.0, Clock())
    store.add(b"honest", owner="quiet")
    for number in range(100):
        store.add(b"%d" % number, owner="loud")
    assert store.get(record_id(b"honest")) == b"honest" and len(store) == 10
    assert store.get(record_id(b"90")) is None and store.get(record_id(b"91")) == b"91", "its oldest first"
    store.add(bytes(990), owner="large")
    assert store.get(record_id(bytes(990))) is None and store.get(record_id(b"honest")), "bytes count where they lack"
