from __future__ import annotations

import threading

from hypothesis import given, strategies as st

from swarm.net.records.stores import Mailbox


def test_oldest_make_room_by_count_and_by_bytes() -> None:
    box = Mailbox[bytes](max_records=3, max_bytes=10)
    for record in (b"a", b"b", b"c", b"d"):
        box.put(record, len(record))
    assert box.num_dropped == 1
    box.put(b"12345678", 8)
    assert box.drain() == [b"c", b"d", b"12345678"] and box.num_dropped == 2
    assert box.drain() == [] and box.take() is None


def test_a_record_larger_than_the_mailbox_evicts_nothing() -> None:
    box = Mailbox[bytes](3, 4)
    box.put(b"keep", 4)
    box.put(b"huge!", 5)
    assert box.take() == b"keep" and box.num_dropped == 1


@given(st.lists(st.binary(max_size=20)), st.integers(1, 5), st.integers(1, 30))
def test_bounds_hold_and_what_is_left_is_the_newest(records: list[bytes], count: int, size: int) -> None:
    box = Mailbox[bytes](count, size)
    for record in records:
        box.put(record, len(record))
    kept = box.drain()
    fitting = [record for record in records if len(record) <= size]
    assert len(kept) <= count and sum(map(len, kept)) <= size
    assert kept == fitting[len(fitting) - len(kept) :]
    assert len(kept) + box.num_dropped == len(records)


def test_nothing_is_lost_or_doubled_between_threads() -> None:
    box = Mailbox[bytes](100_000, 10**9)
    threads = [
        threading.Thread(target=lambda base=base: [box.put(b"%d" % (base + i), 5) for i in range(2_000)])
        for base in (0, 10_000)
    ]
    for thread in threads:
        thread.start()
    taken: list[bytes] = []
    while any(thread.is_alive() for thread in threads):
        taken += box.drain()
    taken += box.drain()
    assert len(taken) == len(set(taken)) == 4_000


def test_who_floods_it_displaces_himself() -> None:
    box = Mailbox[bytes](max_records=10, max_bytes=10**6)
    box.put(b"first", 5, "quiet")
    for number in range(1_000):
        box.put(b"%d" % number, 3, "loud")
    box.put(b"last", 4, "quiet")
    kept = box.drain()
    assert kept[0] == b"first" and kept[-1] == b"last"
    assert kept[1:-1] == [b"%d" % number for number in range(992, 1_000)], "of its own, the newest stay"


def test_bytes_count_where_bytes_are_short() -> None:
    box = Mailbox[bytes](max_records=100, max_bytes=100)
    for number in range(20):
        box.put(b"%02d" % number, 2, "many small")
    for _ in range(3):
        box.put(bytes(50), 50, "few large")
    assert len(box.drain()) == 20 + 1 and box.num_dropped == 2


@given(st.lists(st.tuples(st.binary(max_size=20), st.sampled_from("abc"))), st.integers(1, 5), st.integers(1, 60))
def test_bounds_hold_and_order_too_whoever_sends(puts: list[tuple[bytes, str]], count: int, size: int) -> None:
    box, twin = Mailbox[bytes](count, size), Mailbox[bytes](count, size)
    for record, origin in puts:
        box.put(record, len(record), origin)
        twin.put(record, len(record), origin)
    kept = box.drain()
    assert len(kept) <= count and sum(map(len, kept)) <= size
    assert len(kept) + box.num_dropped == len(puts)
    rest = iter(record for record, _ in puts)
    assert all(record in rest for record in kept), "in the order in which they came"
    assert [twin.take() for _ in kept] == kept and twin.take() is None


def test_what_is_opened_counts_for_what_it_takes_in_memory() -> None:
    box = Mailbox[str](max_records=100, max_bytes=100)
    box.put("small", 1, "quiet")
    box.put("opened", 2, "loud", memory_bytes=60)
    box.put("larger than all, opened", 3, "loud", memory_bytes=10**9)
    assert box.drain() == ["small", "larger than all, opened"], "it comes, and counts for half of the mailbox"
