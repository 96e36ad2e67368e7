from __future__ import annotations

import random
import tracemalloc
from collections import Counter

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from swarm.errors import Refusal
from swarm.net.trust.accounts import (
    MAX_GAP_S,
    MAX_RETIRED_PEERS,
    MAX_STANDING_S,
    MAX_TRACKED_PEERS,
    SEQUENCE_WINDOW,
    PeerBook,
    SafetySettings,
)
from swarm.protocols import RECORDED
from swarm.reasons import Reason


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
    except Refusal as refusal:
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


def test_numbers_in_any_order_count_once_and_a_full_account_is_small(clock: Clock) -> None:
    book = _book(clock)
    book.admit("a", 0, 1)
    numbers = [1_000_000 + 1_000 * n for n in range(SEQUENCE_WINDOW)]
    random.Random(0).shuffle(numbers)
    tracemalloc.start()
    try:
        assert [_refused(book, "a", n) for n in numbers] == [None] * SEQUENCE_WINDOW
        # Names cost nothing: there can be a thousand such accounts.
        assert tracemalloc.get_traced_memory()[0] < 32 * 2**10
    finally:
        tracemalloc.stop()
    assert [_refused(book, "a", n) for n in numbers] == ["replayed"] * SEQUENCE_WINDOW


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
    assert "bad" not in book.quarantined()
    book.report("bad", "verifier_timeout")
    assert book.quarantined() == {"bad"}
    assert _refused(book, "bad", 1) == "quarantined"
    clock.now += 101
    assert "bad" not in book.quarantined() and _refused(book, "bad", 2) is None
    for _ in range(2):
        book.report("bad", "verifier_crash")
    clock.now += 150
    assert "bad" in book.quarantined(), "the second one is twice as long"


def test_only_groups_that_were_used_earn_anything(clock: Clock) -> None:
    book = _book(clock)
    for _ in range(200):
        clock.now += 10
        book.report("right", "informative")
        book.report("used", "informative")
        book.report("used", "used")
        book.report("family", "used")
        book.report("family", Reason.IMPROBABLE)
        book.report("poisoner", Reason.IMPROBABLE)
    assert book.proven() == book.established() == {"used", "family"}
    stats = book.stats()
    assert stats["right"].merit == 0 and stats["used"].used == 200
    assert stats["family"].reputation > 0.9 > 0.5 > stats["poisoner"].reputation


def test_whoever_sends_only_what_is_improbable_is_quarantined_in_the_end(clock: Clock) -> None:
    book = _book(clock)
    count = 0
    while "poisoner" not in book.quarantined():
        book.report("poisoner", Reason.IMPROBABLE)
        count += 1
    assert count == 200


def test_usefulness_outweighs_mistakes(clock: Clock) -> None:
    book = _book(clock, quarantine_at=8.0)
    for _ in range(50):
        book.report("busy", "used")
        book.report("busy", "question_mismatch")
    assert "busy" not in book.quarantined()
    assert book.stats()["busy"].reputation == pytest.approx(0.5, abs=0.01)


def test_old_offences_fade(clock: Clock) -> None:
    book = _book(clock, quarantine_at=8.0, half_life_s=10.0)
    for _ in range(20):
        book.report("slow", "verifier_timeout")
        clock.now += 30
    assert "slow" not in book.quarantined()


def test_what_is_nobodys_fault_or_anybodys_trick_counts_against_no_one(clock: Clock) -> None:
    book = _book(clock)
    for outcome in ("zero_advantage", "unknown_task", "clock", "replayed", "duplicate", "pool_full", "expired"):
        for _ in range(100):
            book.report("fine", outcome)
    stats = book.stats()["fine"]
    assert "fine" not in book.quarantined() and stats.reputation == 0.5
    assert stats.dropped["zero_advantage"] == 100, "counted by reason all the same"


def test_a_slow_link_alone_is_no_reason_for_quarantine(clock: Clock) -> None:
    book = _book(clock)
    # As often as a peer that is slow each time is asked: every ten minutes in the end.
    for _ in range(100):
        book.report("slow", "slow_holder")
        clock.now += 30
    assert "slow" not in book.quarantined() and book.stats()["slow"].dropped["slow_holder"] == 100


def test_memory_is_bounded_and_new_keys_do_not_buy_a_release(clock: Clock) -> None:
    book = _book(clock, quarantine_at=1.0)
    book.report("bad", "verifier_timeout")
    for n in range(3 * MAX_TRACKED_PEERS):
        book.report(f"sybil-{n}", "used")
    assert len(book.stats()) == MAX_TRACKED_PEERS
    assert "bad" in book.quarantined()


def test_a_peer_whose_groups_take_long_to_verify_waits_until_it_has_paid(clock: Clock) -> None:
    book = _book(clock, verify_s_per_min=6.0)
    assert _refused(book, "slow", 1) is None
    book.report("slow", "used", verify_s=9.0)
    assert _refused(book, "slow", 2) == "verify_budget"
    clock.now += 31
    assert _refused(book, "slow", 3) is None
    assert "slow" not in book.quarantined(), "slow is no offence"


def test_single_use_names_do_not_make_old_records_new(clock: Clock) -> None:
    """However many there are: a name that is forgotten comes back as one that sent what it sent."""
    book = _book(clock)
    made_at = clock.now
    book.admit("old", 5, 1, made_at)
    for n in range(MAX_TRACKED_PEERS + 2 * MAX_RETIRED_PEERS):
        clock.now += 0.01
        book.admit(f"sybil-{n}", 1, 1, clock.now)
        if n % 4_000 == 0:
            with pytest.raises(Refusal, match="replayed"):
                book.admit("old", 5, 1, made_at)
    with pytest.raises(Refusal, match="replayed"):
        book.admit("old", 5, 1, made_at)
    with pytest.raises(Refusal, match="replayed"):
        book.admit("sybil-1", 1, 1, made_at + 0.02)
    book.admit("honest newcomer", 1, 1, clock.now)
    assert len(book.stats()) == MAX_TRACKED_PEERS and len(book.highest_sequences()) < 20_000


def test_names_from_the_future_lock_no_newcomer_out(clock: Clock) -> None:
    book = _book(clock)
    for n in range(MAX_TRACKED_PEERS + MAX_RETIRED_PEERS + 10):
        book.admit(f"sybil-{n}", 1, 1, clock.now + 599)
    clock.now += 1
    book.admit("honest newcomer", 1, 1, clock.now)


def test_what_was_forgotten_is_remembered_over_a_restart(clock: Clock) -> None:
    book = _book(clock)
    book.admit("old", 5, 1)
    for n in range(MAX_TRACKED_PEERS):
        book.admit(f"sybil-{n}", 1, 1)
    assert "old" not in book.stats()
    again = _book(clock)
    again.restore(book.highest_sequences())
    assert [_refused(again, "old", n) for n in (5, 6)] == ["replayed", None]


def test_a_sequence_number_of_a_time_to_come_is_refused_and_not_remembered(clock: Clock) -> None:
    book = _book(clock)
    now_ms = int(clock.now * 1000)
    assert _refused(book, "wild", 2**62) == "clock"
    assert _refused(book, "wild", now_ms + 500_000) is None, "a clock that is some minutes ahead"
    again = _book(clock)
    again.restore(book.highest_sequences())
    clock.now += 1
    assert _refused(again, "wild", now_ms + 1) is None, "its clock was set right"


def test_an_honest_clock_that_is_ahead_is_no_reason_for_quarantine(clock: Clock) -> None:
    book = _book(clock)
    for _ in range(1_000):
        book.report("ahead", "clock")
    assert "ahead" not in book.quarantined() and book.stats()["ahead"].reputation == 0.5


def test_texts_that_are_too_long_weigh_by_what_they_cost(clock: Clock) -> None:
    book = _book(clock)
    for _ in range(100):
        book.report("longer context", "too_long")
        clock.now += 6
    assert "longer context" not in book.quarantined()
    for _ in range(600):
        book.report("bomber", "too_long")
    assert "bomber" in book.quarantined()


def test_who_would_be_refused_is_not_opened(clock: Clock) -> None:
    book = _book(clock, groups_per_min=2.0, quarantine_at=4.0)
    for n in range(2):
        book.precheck("fast", 100)
        book.admit("fast", n, 100)
    with pytest.raises(Refusal, match="rate"):
        book.precheck("fast", 100)
    book.report("bad", "verifier_timeout")
    with pytest.raises(Refusal, match="quarantined"):
        book.precheck("bad", 100)
    assert book.stats()["fast"].received == 3 and book.stats()["bad"].received == 1


def test_who_was_of_use_lately_is_proven(clock: Clock) -> None:
    book = _book(clock)
    for _ in range(4):
        book.report("useful", "used")
        book.report("mixed", "used")
        book.report("mixed", "question_mismatch")
        book.report("dull", "zero_advantage")
    assert book.proven() == {"useful"}
    clock.now += 3_600
    assert book.proven() == frozenset()


def _timeouts_until_quarantine(book: PeerBook, peer: str) -> int:
    for count in range(1, 50):
        book.report(peer, "verifier_timeout")
        if peer in book.quarantined():
            return count
    raise AssertionError("never")


def test_ten_minutes_of_usefulness_buy_no_more_time_outs_than_a_newcomer_has(clock: Clock) -> None:
    book = _book(clock)
    for _ in range(600 * 18):
        book.report("busy", "used")
        book.report("busy", "used")
        clock.now += 1 / 18
    assert _timeouts_until_quarantine(book, "busy") <= _timeouts_until_quarantine(book, "new") + 1 <= 4


def test_usefulness_in_between_buys_hardly_more(clock: Clock) -> None:
    book = _book(clock)
    for _ in range(4):
        for _ in range(500):
            book.report("busy", "used")
        book.report("busy", "verifier_timeout")
    assert "busy" in book.quarantined()


def test_an_honest_peer_with_rare_offences_is_not_banned(clock: Clock) -> None:
    book = _book(clock)
    for number in range(3 * 3_600):  # an hour, three groups a second
        book.report("honest", "used")
        if number % 10 == 0:
            book.report("honest", "question_mismatch")
        if number % 1_000 == 0:
            book.report("honest", "verifier_timeout")
        clock.now += 1 / 3
        assert "honest" not in book.quarantined()


def test_copies_weigh_lightly_but_a_life_of_copying_ends(clock: Clock) -> None:
    book = _book(clock)
    for _ in range(10):
        book.report("odd", "copied")
    assert "odd" not in book.quarantined()
    for _ in range(30):
        book.report("thief", "copied")
    assert "thief" in book.quarantined()


def test_standing_grows_with_time_and_not_with_volume(clock: Clock) -> None:
    book = _book(clock)
    for second in range(400):
        book.report("senior", "used")
        if second >= 300:
            for _ in range(20):
                book.report("flood", "used")
        clock.now += 1
    assert book.established() == {"senior"}
    stats = book.stats()
    assert stats["senior"].standing_s == 399 and stats["flood"].standing_s == 99
    for _ in range(220):
        for peer in ("senior", "flood"):
            book.report(peer, "used")
        clock.now += 1
    assert book.established() == {"senior", "flood"}, "whoever stays is a member in the end"


def test_in_a_young_swarm_everybody_soon_has_standing(clock: Clock) -> None:
    book = _book(clock)
    for peer in ("a", "b"):
        book.report(peer, "used")
    assert book.established() == {"a", "b"}
    for _ in range(10):
        clock.now += 1
        for peer in ("a", "b", "c"):
            book.report(peer, "used")
    assert book.established() == {"a", "b", "c"}


def test_slow_peers_get_standing_too_and_silence_gives_little(clock: Clock) -> None:
    book = _book(clock)
    for _ in range(10):
        book.report("slow", "used")
        clock.now += 200
    book.report("sleeper", "used")
    clock.now += 100_000
    book.report("sleeper", "used")
    stats = book.stats()
    assert stats["slow"].standing_s == MAX_STANDING_S
    assert stats["sleeper"].standing_s == MAX_GAP_S


def test_harm_costs_merit_and_standing_and_is_no_offence(clock: Clock) -> None:
    book = _book(clock)
    for _ in range(100):
        book.report("a", "used")
        clock.now += 1
    book.report("a", "harmful")
    stats = book.stats()["a"]
    assert (stats.merit, stats.standing_s, stats.offence) == (0.0, 0.0, 0.0)


def test_new_keys_do_not_push_out_who_has_standing(clock: Clock) -> None:
    book = _book(clock)
    for _ in range(3):
        book.report("senior", "used")
        clock.now += 60
    for n in range(3 * MAX_TRACKED_PEERS):
        book.report(f"sybil-{n}", "used")
    assert book.stats()["senior"].standing_s == 120 and len(book.stats()) == MAX_TRACKED_PEERS


@pytest.mark.parametrize("back_s", [3600.0, 8 * 86_400.0])
def test_a_clock_that_is_set_back_costs_nobody_anything(clock: Clock, back_s: float) -> None:
    book = _book(clock)
    for sequence in range(60):
        clock.now += 10.0
        assert _refused(book, "honest", sequence) is None
        book.report("honest", "used")
    book.report("honest", "question_mismatch")
    before = replace(book.stats()["honest"])
    clock.now -= back_s
    after = book.stats()["honest"]
    assert (after.merit, after.offence, after.standing_s) == (before.merit, before.offence, before.standing_s)
    book.report("honest", "used")
    assert after.standing_s == before.standing_s
    assert _refused(book, "honest", 60) is None and "honest" not in book.quarantined()
    clock.now += 600.0
    assert book.stats()["honest"].offence == pytest.approx(before.offence / 2), "weights fade on from there"


def test_recorded_groups_make_no_member_a_newcomer(clock: Clock) -> None:
    book = _book(clock)
    for _ in range(20):
        book.report(RECORDED, "used")
        clock.now += 60.0
    book.report("member", "used")
    assert book.established() == {RECORDED, "member"}
