"""What a judge may be asked in an hour."""

from __future__ import annotations

from swarm.extras.judging.service import HOUR_S, Budget


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_requests_are_limited_in_any_hour() -> None:
    clock = Clock()
    budget = Budget(10, None, 0.5, clock)
    assert budget.allows(10, own=True) and not budget.allows(11, own=True)
    budget.spend(6, 0, own=True)
    clock.now = HOUR_S / 2
    budget.spend(4, 0, own=True)
    assert not budget.allows(1, own=True)
    clock.now = HOUR_S
    assert budget.allows(6, own=True) and not budget.allows(7, own=True)


def test_strangers_get_their_part_and_no_more() -> None:
    budget = Budget(10, None, 0.3, Clock())
    assert budget.allows(3, own=False) and not budget.allows(4, own=False)
    budget.spend(3, 0, own=False)
    assert not budget.allows(1, own=False) and budget.allows(7, own=True) and not budget.allows(8, own=True)
    assert not Budget(10, None, 0.0, Clock()).allows(1, own=False)


def test_tokens_end_it_after_they_are_known() -> None:
    budget = Budget(None, 100, 0.5, Clock())
    assert budget.allows(10**6, own=True)
    budget.spend(1, 50, own=False)
    assert not budget.allows(1, own=False) and budget.allows(1, own=True)
    budget.spend(1, 50, own=True)
    assert not budget.allows(1, own=True)


def test_without_limits_anything_goes_and_memory_is_bounded() -> None:
    clock = Clock()
    budget = Budget(None, None, 0.0, clock)
    for _ in range(20_000):
        clock.now += 0.5
        budget.spend(1, 1, own=False)
    assert budget.allows(10**9, own=False)
    assert len(budget._strangers._ticks) <= HOUR_S + 20_000 / 2
