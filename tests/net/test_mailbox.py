from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from swarm.net.mailbox import Mailbox


def test_oldest_make_room_by_count_and_by_bytes() -> None:
    box = Mailbox(max_records=3, max_bytes=10)
    for record in (b"a", b"b", b"c", b"d"):
        box.put(record)
    assert box.num_dropped == 1
    box.put(b"12345678")
    assert box.drain() == [b"c", b"d", b"12345678"] and box.num_dropped == 2
    assert box.drain() == [] and box.take() is None


def test_a_record_larger_than_the_mailbox_evicts_nothing() -> None:
    box = Mailbox(3, 4)
    box.put(b"keep")
    box.put(b"huge!")
    assert box.take() == b"keep" and box.num_dropped == 1


@given(st.lists(st.binary(max_size=20)), st.integers(1, 5), st.integers(1, 30))
def test_bounds_hold_and_what_is_left_is_the_newest(records: list[bytes], count: int, size: int) -> None:
    box = Mailbox(count, size)
    for record in records:
        box.put(record)
    kept = box.drain()
    fitting = [record for record in records if len(record) <= size]
    assert len(kept) <= count and sum(map(len, kept)) <= size
    assert kept == fitting[len(fitting) - len(kept) :]
    assert len(kept) + box.num_dropped == len(records)


def test_nothing_is_lost_or_doubled_between_threads() -> None:
    box = Mailbox(100_000, 10**9)
    threads = [
        threading.Thread(target=lambda base=base: [box.put(b"%d" % (base + i)) for i in range(2_000)])
        for base in (0, 10_000)
    ]
    for thread in threads:
        thread.start()
    taken: list[bytes] = []
    while any(thread.is_alive() for thread in threads):
        taken += box.drain()
    taken += box.drain()
    assert len(taken) == len(set(taken)) == 4_000
