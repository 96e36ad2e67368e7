from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import assume, given, strategies as st

from swarm.extras.learner.capacity import (
    ROUNDING,
    Demand,
    Worker,
    bubble_ratio,
    cheapest,
    cost_per_step,
    pool_rate,
    rate_within,
    required_rate,
    smallest_feasible_period,
    staleness_bound,
    step_s,
    tightened_staleness_bound,
)
from swarm.following import publish_every

TIMES = st.floats(0.1, 1_000)
DEMANDS = st.builds(Demand, st.integers(1, 2_000), TIMES, st.floats(0, 500), st.integers(1, 12))


def overlaps(demand: Demand, rate: float) -> bool:
    """Whether generation and dissemination fit into a publication period (arXiv:2602.02192, eq. 1)."""
    required = required_rate(demand)
    return required is not None and rate >= required * (1 - ROUNDING)


def test_by_hand() -> None:
    demand = Demand(rollouts=120, train_s=60.0, broadcast_s=40.0, publish_every=2)
    assert required_rate(demand) == pytest.approx(3.0)  # 120 / (60 - 20)
    assert bubble_ratio(demand, 3.0) == 0.0 and step_s(demand, 3.0) == pytest.approx(60.0)
    assert bubble_ratio(demand, 1.5) == pytest.approx(1 - 120 / 200)  # 2 * 120 / 1.5 + 40 = 200 s for 120 s of training
    assert staleness_bound(demand, 3.0) == 2 + 2 - 1  # (40 + 40) / 60 -> 2
    assert tightened_staleness_bound(demand) == 2 + 2 - 1  # 1 + 0.5 * 40 / 60 -> 2
    workers = [Worker("a", 2.0, 3.6), Worker("b", 2.0, 7.2, availability=0.5)]
    assert pool_rate(workers) == 3.0
    assert cost_per_step(demand, workers, learner_price=36.0) == pytest.approx((36.0 + 10.8) * 60 / 3600)


def test_a_broadcast_longer_than_the_period_is_infeasible() -> None:
    demand = Demand(100, 10.0, 30.0, 3)
    assert required_rate(demand) is None
    assert bubble_ratio(demand, 1e12) > 0
    assert smallest_feasible_period(demand, 20.0) == 6  # 30 / (10 - 5)
    assert smallest_feasible_period(demand, 10.0) is None


@pytest.mark.parametrize(
    "bad", [(0, 1.0, 0.0, 1), (1, 0.0, 0.0, 1), (1, 1.0, -1.0, 1), (1, 1.0, 0.0, 0), (1, math.inf, 0.0, 1)]
)
def test_what_no_learner_has_is_refused(bad: tuple[int, float, float, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Demand(*bad)


@given(DEMANDS)
def test_the_capacity_rule_is_where_the_overlap_begins(demand: Demand) -> None:
    required = required_rate(demand)
    if required is None:
        assert bubble_ratio(demand, 1e15) >= 0
        return
    assume(required < 1e9)
    assert bubble_ratio(demand, required * 1.001) == 0.0 < bubble_ratio(demand, required * 0.99)


@given(DEMANDS, st.floats(0.1, 1_000))
def test_the_smallest_period_is_feasible_and_the_next_smaller_is_not(demand: Demand, rate: float) -> None:
    smallest = smallest_feasible_period(demand, rate)
    assume(smallest is None or smallest < 10_000)
    for period in range(1, 20) if smallest is None else (smallest, smallest - 1):
        if period >= 1:
            other = Demand(demand.rollouts, demand.train_s, demand.broadcast_s, period)
            assert (bubble_ratio(other, rate) <= ROUNDING) == (period == smallest)


@given(DEMANDS, st.floats(1.0, 10.0))
def test_with_overlap_the_tightened_bound_holds_too(demand: Demand, spare: float) -> None:
    required = required_rate(demand)
    assume(required is not None)
    assert required is not None
    assert staleness_bound(demand, required * spare) <= tightened_staleness_bound(demand)


@given(st.integers(2, 64), st.integers(1, 1_000), TIMES, st.floats(0, 1))
def test_the_default_period_keeps_the_staleness_within_the_budget(
    budget: int, rollouts: int, train_s: float, part: float
) -> None:
    demand = Demand(rollouts, train_s, part * train_s, publish_every(budget))
    assert tightened_staleness_bound(demand) <= budget


@given(DEMANDS, st.integers(0, 12))
def test_the_rate_for_a_staleness_is_where_its_bound_begins_to_hold(demand: Demand, budget: int) -> None:
    needed = rate_within(demand, budget)
    if needed is None:
        assert staleness_bound(demand, 1e5) > budget
        return
    assume(demand.rollouts / needed > 1e-4 * demand.train_s)  # what is less is within the tolerance
    assert staleness_bound(demand, needed * 1.001) <= budget < staleness_bound(demand, needed * 0.999)


def exact(workers: list[Worker], rate: float) -> float:
    sets = itertools.chain.from_iterable(itertools.combinations(workers, n) for n in range(len(workers) + 1))
    return min((sum(w.price for w in chosen) for chosen in sets if pool_rate(chosen) >= rate), default=math.inf)


def test_the_chosen_set_suffices_and_costs_little_more_than_the_cheapest() -> None:
    draw = random.Random(0)
    ratios = []
    for _ in range(150):
        workers = [Worker(str(i), draw.uniform(0.5, 4), draw.uniform(0.2, 2), draw.uniform(0.5, 1)) for i in range(10)]
        rate = draw.uniform(0.2, 0.9) * pool_rate(workers)
        chosen = cheapest(workers, rate)
        assert chosen is not None and len(set(chosen)) == len(chosen) and set(chosen) <= set(workers)
        assert pool_rate(chosen) >= rate * (1 - 1e-9)
        ratios.append(sum(worker.price for worker in chosen) / exact(workers, rate))
    assert min(ratios) >= 1 - 1e-9
    assert sum(ratios) / len(ratios) < 1.05


def test_what_all_workers_together_do_not_reach_has_no_set() -> None:
    workers = [Worker("a", 1.0, 1.0), Worker("gone", 100.0, 0.0, availability=0.0)]
    assert cheapest(workers, 2.0) is None
    assert cheapest(workers, 1.0) == (workers[0],)
    assert cheapest(workers, 0.0) == ()
    assert cheapest([], 1.0) is None


def test_one_large_worker_is_taken_where_small_ones_cost_more() -> None:
    small = [Worker(f"s{i}", 1.0, 1.0) for i in range(3)]
    large = Worker("l", 10.0, 2.5)
    assert cheapest([*small, large], 3.0) == (large,)
    # By unit price the tiny one comes first, and is then one too many.
    assert cheapest([Worker("tiny", 0.1, 0.01), large], 5.0) == (large,)
