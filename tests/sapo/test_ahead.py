"""Batches ahead of the updates in virtual time: how much of the slots they use, and how old their tokens are."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest
from hypothesis import given, settings, strategies as st

from tests.sapo.virtual import Virtual

LONGEST = 512
MEAN = 140
"""Of `log_normal`, about."""
BATCH = 64
WARM_UP = 10
"""Batches until everything is as it stays."""


def log_normal(rng: random.Random) -> float:
    """The longest of 64 is about four times as long as their mean."""
    return min(LONGEST, math.exp(rng.gauss(4.5, 1)))


def steady(max_staleness: int, slots: int, batches_a_call: int = 64) -> Virtual:
    """Updates take half of what generation takes at best."""
    return Virtual(
        max_staleness=max_staleness,
        length=log_normal,
        update_s=lambda rng: 0.5 * BATCH * MEAN / slots,
        slots=slots,
        batches_a_call=batches_a_call,
    ).run()


@pytest.mark.parametrize(
    ("max_staleness", "slots", "least", "by_batches"),
    [(2, BATCH // 2, 0.95, 0.50), (3, BATCH // 2, 0.99, 0.50), (1, BATCH // 6, 0.95, 0.80), (3, BATCH, 0.80, 0.30)],
)
def test_slots_are_busy_as_long_as_the_bound_leaves_questions(
    max_staleness: int, slots: int, least: float, by_batches: float
) -> None:
    flowing, drained = steady(max_staleness, slots), steady(max_staleness, slots, batches_a_call=1)
    assert flowing.busy(WARM_UP) >= least and drained.busy(WARM_UP) <= by_batches
    assert max(flowing.lags) <= max_staleness
    print(f"S {max_staleness}, {slots} slots: {flowing.busy(WARM_UP):.3f}, by batches {drained.busy(WARM_UP):.3f}")
    figures = [figure for figure in flowing.figures[WARM_UP:] if figure is not None]
    assert len(figures) == len(flowing.figures) - WARM_UP
    assert fmean(figures) == pytest.approx(flowing.busy(WARM_UP), abs=0.05), "what the rounds say"


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    max_staleness=st.integers(1, 3),
    slots=st.integers(1, 14),
    update_s=st.floats(1, 2_000),
    batches_a_call=st.sampled_from([1, 3, 64]),
)
def test_no_sequence_begins_before_the_bound_allows_it_whatever_takes_longer(
    seed: int, max_staleness: int, slots: int, update_s: float, batches_a_call: int
) -> None:
    run = Virtual(
        max_staleness=max_staleness,
        length=log_normal,
        update_s=lambda rng: rng.expovariate(1 / update_s),
        num_batches=12,
        num_questions=3,
        group_size=4,
        slots=slots,
        batches_a_call=batches_a_call,
        seed=seed,
    ).run()
    assert max(run.begun_behind) <= max_staleness
    assert len(run.lags) == 3 * 12 and max(run.lags) <= max_staleness


def test_where_updates_take_longer_than_generation_a_batch_waits_for_them_and_uses_the_whole_bound() -> None:
    run = Virtual(max_staleness=2, length=log_normal, update_s=lambda rng: 5_000, num_batches=12).run()
    assert set(run.lags[8 * 4 :]) == {2}


def test_a_batch_whose_time_is_over_leaves_its_slots_and_more_is_finished_than_by_batches() -> None:
    def limited(batches_a_call: int) -> Virtual:
        return Virtual(
            max_staleness=2,
            length=log_normal,
            update_s=lambda rng: 150,
            num_batches=30,
            slots=32,
            limit_s=300,
            batches_a_call=batches_a_call,
        ).run()

    flowing, drained = limited(64), limited(1)
    assert min(flowing.sizes) >= 1 and max(flowing.sizes) < 8, "a batch needs 280 s of all slots, and its longest 512"
    assert sum(flowing.sizes) >= sum(drained.sizes)
    assert flowing.now <= 1.02 * drained.now <= 30 * 400
    assert max(flowing.lags) <= 2 and flowing.busy(WARM_UP) > 0.95


def test_questions_that_flow_are_those_of_batches_in_turn_and_sampled_alike() -> None:
    flowing, drained = steady(2, BATCH), steady(2, BATCH, batches_a_call=1)
    assert flowing.sizes == drained.sizes == [8] * 60
    assert flowing.now < 0.8 * drained.now
