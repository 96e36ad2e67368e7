from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.net.records import shelf as shelf_module
from swarm.net.records.shelf import Shelf, record_id


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_records_are_held_by_content_for_their_time() -> None:
    clock = Clock()
    shelf = Shelf(10, 1_000, 60.0, clock)
    assert shelf.add(b"first") and not shelf.add(b"first")
    clock.now += 59
    assert shelf.get(record_id(b"first")) == b"first"
    clock.now += 1
    assert shelf.get(record_id(b"first")) is None and len(shelf) == 0 and shelf.num_bytes == 0
    # Forgotten, but not news.
    assert shelf.knows(record_id(b"first")) and not shelf.add(b"first")


def test_an_id_can_be_noted_without_its_record() -> None:
    shelf = Shelf(10, 1_000, 60.0, Clock())
    assert shelf.note(record_id(b"junk")) and not shelf.note(record_id(b"junk"))
    assert not shelf.add(b"junk") and shelf.get(record_id(b"junk")) is None and shelf.listing(60.0, 0.0, 10) == []


def test_age_travels_along_so_that_a_record_does_not_go_round_for_ever() -> None:
    clock = Clock()
    shelf = Shelf(10, 1_000, 60.0, clock)
    shelf.add(b"late", age_s=50.0)
    (held,) = shelf.listing(60.0, 0.0, 10)
    assert held.age_s == 50.0
    clock.now += 11
    assert shelf.listing(60.0, 0.0, 10) == [] and shelf.get(record_id(b"late")) is None
    assert shelf.add(b"too late", age_s=60.0) and shelf.get(record_id(b"too late")) is None
    assert shelf.add(b"from the future", age_s=-1.0) and shelf.get(record_id(b"from the future")) is None


def test_the_listing_has_the_latest_first_between_two_ages() -> None:
    clock = Clock()
    shelf = Shelf(10, 1_000, 60.0, clock)
    for name in (b"a", b"b", b"c", b"d"):
        shelf.add(name, listed=name != b"b")
        clock.now += 10
    names = {record_id(name): name for name in (b"a", b"b", b"c", b"d")}
    assert [names[held.record_id] for held in shelf.listing(60.0, 0.0, 10)] == [b"d", b"c", b"a"]
    assert [names[held.record_id] for held in shelf.listing(40.0, 15.0, 10)] == [b"c"]
    assert [names[held.record_id] for held in shelf.listing(60.0, 0.0, 1)] == [b"d"]
    assert shelf.get(record_id(b"b")) == b"b"


@given(st.lists(st.tuples(st.binary(max_size=30), st.floats(-1, 70), st.floats(0, 30)), max_size=40))
def test_bounds_hold_whatever_comes(puts: list[tuple[bytes, float, float]]) -> None:
    clock = Clock()
    shelf = Shelf(5, 60, 60.0, clock)
    for record, age_s, pause_s in puts:
        shelf.add(record, age_s)
        clock.now += pause_s
        held = shelf.listing(60.0, 0.0, 100)
        assert len(held) <= len(shelf) <= 5 and shelf.num_bytes <= 60
        assert sum(entry.num_bytes for entry in held) <= shelf.num_bytes
        assert all(0 <= entry.age_s < 60 and shelf.get(entry.record_id) is not None for entry in held)


def test_memory_of_ids_is_bounded(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(shelf_module, "SEEN_RECORDS", 2)
    shelf = Shelf(10, 1_000, 60.0, Clock())
    assert [shelf.add(name) for name in (b"a", b"b", b"c", b"b", b"a")] == [True, True, True, False, True]


def test_who_puts_most_on_it_makes_room() -> None:
    shelf = Shelf(10, 1_000, 60.0, Clock())
    shelf.add(b"honest", owner="quiet")
    for number in range(100):
        shelf.add(b"%d" % number, owner="loud")
    assert shelf.get(record_id(b"honest")) == b"honest" and len(shelf) == 10
    assert shelf.get(record_id(b"90")) is None and shelf.get(record_id(b"91")) == b"91", "its oldest first"
    shelf.add(bytes(990), owner="large")
    assert shelf.get(record_id(bytes(990))) is None and shelf.get(record_id(b"honest")), "bytes count where they lack"
