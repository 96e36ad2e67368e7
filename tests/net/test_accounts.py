from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import RejectedGroup
from swarm.net.accounts import MAX_TRACKED_PEERS, SEQUENCE_WINDOW, PeerBook, SafetySettings


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _book(clock: Clock, **settings: float) -> PeerBook:
    return PeerBook(SafetySettings(**settings), clock)


def _refused(book: PeerBook, peer: str, sequence: int, num_bytes: int = 100) -> str | None:
    try:
        book.admit(peer, sequence, num_bytes)
    except RejectedGroup as refusal:
        return refusal.reason
    return None


def test_a_sequence_number_counts_once_in_any_order(clock: Clock) -> None:
    book = _book(clock)
    assert [_refused(book, "a", n) for n in (5, 3, 9, 3, 4, 9)] == [None, None, None, "replayed", None, "replayed"]
    assert _refused(book, "b", 3) is None, "peers count apart"


@given(st.lists(st.integers(0, 300), min_size=1, max_size=400))
def test_nothing_is_ever_admitted_twice(sequences: list[int]) -> None:
    book = _book(Clock())
    admitted = Counter(n for n in sequences if _refused(book, "a", n) is None)
    assert set(admitted.values()) <= {1}
    assert set(admitted) == set(sequences), "within the window nothing new is refused"


def test_below_the_window_everything_counts_as_seen(clock: Clock) -> None:
    book = _book(clock)
    for n in range(10, 10 + SEQUENCE_WINDOW + 5):
        assert _refused(book, "a", 2 * n) is None
    assert _refused(book, "a", 1) == "replayed"
    assert _refused(book, "a", 2 * 20 + 1) is None, "late, not replayed"


def test_a_restart_does_not_open_the_door_to_replays(clock: Clock) -> None:
    book = _book(clock)
    for n in (5, 9, 7):
        book.admit("a", n, 1)
    again = _book(clock)
    again.restore(book.highest_sequences())
    assert [_refused(again, "a", n) for n in (5, 9, 10)] == ["replayed", "replayed", None]


def test_a_sender_faster_than_its_rate_is_cut_to_it(clock: Clock) -> None:
    book = _book(clock, groups_per_min=60.0)
    outcomes = Counter(_refused(book, "fast", n) for n in range(100))
    assert outcomes == {None: 60, "rate": 40}, "a minute's worth may come at once"
    clock.now += 10
    assert Counter(_refused(book, "fast", n) for n in range(100, 150)) == {None: 10, "rate": 40}
    assert _refused(book, "other", 1) is None


def test_bytes_are_limited_too(clock: Clock) -> None:
    book = _book(clock, bytes_per_min=1_000.0)
    assert [_refused(book, "a", n, 400) for n in range(4)] == [None, None, "rate", "rate"]


def test_offences_lead_to_quarantine_that_ends_and_grows(clock: Clock) -> None:
    book = _book(clock, quarantine_at=8.0, quarantine_s=100.0)
    book.report("bad", "verifier_timeout")
    assert not book.is_quarantined("bad")
    book.report("bad", "verifier_timeout")
    assert book.quarantined() == {"bad"}
    assert _refused(book, "bad", 1) == "quarantined"
    clock.now += 101
    assert not book.is_quarantined("bad") and _refused(book, "bad", 2) is None
    for _ in range(2):
        book.report("bad", "verifier_crash")
    clock.now += 150
    assert book.is_quarantined("bad"), "the second one is twice as long"


def test_usefulness_outweighs_mistakes(clock: Clock) -> None:
    book = _book(clock, quarantine_at=8.0)
    for _ in range(50):
        book.report("busy", "informative")
        book.report("busy", "question_mismatch")
    assert not book.is_quarantined("busy")
    assert book.stats()["busy"].reputation == pytest.approx(0.5, abs=0.01)


def test_old_offences_fade(clock: Clock) -> None:
    book = _book(clock, quarantine_at=8.0, half_life_s=10.0)
    for _ in range(20):
        book.report("slow", "verifier_timeout")
        clock.now += 30
    assert not book.is_quarantined("slow")


def test_what_is_nobodys_fault_or_anybodys_trick_counts_against_no_one(clock: Clock) -> None:
    book = _book(clock)
    for outcome in ("zero_advantage", "unknown_task", "too_long", "replayed", "duplicate", "pool_full", "expired"):
        for _ in range(100):
            book.report("fine", outcome)
    stats = book.stats()["fine"]
    assert not book.is_quarantined("fine") and stats.reputation == 0.5
    assert stats.dropped["zero_advantage"] == 100, "counted by reason all the same"


def test_a_slow_link_alone_is_no_reason_for_quarantine(clock: Clock) -> None:
    book = _book(clock)
    # As often as a peer that is slow each time is asked: every ten minutes in the end.
    for _ in range(100):
        book.report("slow", "slow_holder")
        clock.now += 30
    assert not book.is_quarantined("slow") and book.stats()["slow"].dropped["slow_holder"] == 100


def test_memory_is_bounded_and_new_keys_do_not_buy_a_release(clock: Clock) -> None:
    book = _book(clock, quarantine_at=1.0)
    book.report("bad", "verifier_timeout")
    for n in range(3 * MAX_TRACKED_PEERS):
        book.report(f"sybil-{n}", "informative")
    assert len(book.stats()) == MAX_TRACKED_PEERS
    assert book.is_quarantined("bad")


def test_a_peer_whose_groups_take_long_to_verify_waits_until_it_has_paid(clock: Clock) -> None:
    book = _book(clock, verify_s_per_min=6.0)
    assert _refused(book, "slow", 1) is None
    book.report("slow", "informative", verify_s=9.0)
    assert _refused(book, "slow", 2) == "verify_budget"
    clock.now += 31
    assert _refused(book, "slow", 3) is None
    assert not book.is_quarantined("slow"), "slow is no offence"
