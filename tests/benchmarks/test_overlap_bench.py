"""The overlap benchmark's own arithmetic, and its virtual time."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from benchmarks.overlap.__main__ import LOADS, _knee, _least
from benchmarks.overlap.virtual import Plan, Virtual, bubble
from swarm.extras.learner.capacity import Demand, Worker, cheapest, pool_rate, required_rate


def test_the_least_price_is_that_of_all_subsets() -> None:
    rng = random.Random(0)
    for _ in range(30):
        pool = [Worker(str(k), rng.uniform(0.5, 2), rng.uniform(0.1, 1)) for k in range(8)]
        subsets = itertools.chain.from_iterable(itertools.combinations(pool, n) for n in range(9))
        price = min((sum(w.price for w in each) for each in subsets if pool_rate(each) >= 4.0), default=math.inf)
        assert _least(pool, 4.0) == pytest.approx(price)
        chosen = cheapest(pool, 4.0)
        assert price == math.inf if chosen is None else sum(w.price for w in chosen) == pytest.approx(price)


def test_the_knee_lies_between_the_loads_around_it() -> None:
    bubbles = [0.3] * LOADS.index(0.95) + [0.02] + [0.0] * (len(LOADS) - LOADS.index(0.95) - 1)
    assert 0.95 < _knee(bubbles) < 1.0
    assert _knee([0.0] * len(LOADS)) == LOADS[0]
    assert _knee([0.5] * len(LOADS)) == math.inf


def test_virtual_time_agrees_with_the_model_where_nothing_disturbs_it() -> None:
    demand = Demand(256, 60.0, 6.0, 2)
    needed = required_rate(demand)
    assert needed is not None
    half, ample = (
        Virtual(Plan(demand, 3, (load * needed / 8,) * 8, idle_while_receiving=True)).run(16) for load in (0.5, 1.3)
    )
    assert bubble(half, 4) == pytest.approx(0.47, abs=0.04)
    assert bubble(ample, 4) < 0.01


def test_deaths_and_delays_never_make_a_token_too_old() -> None:
    demand = Demand(64, 60.0, 30.0, 2)
    run = Virtual(Plan(demand, 3, (0.2,) * 16, False, 20.0, 0.1, 300.0, 0.5))
    run.run(30)
    assert 0 < run.worst_lag <= 3
    learner = run.learner
    assert learner.ledger.unaccounted(learner.buffer.num_unused(), learner.num_pending) == 0
