from __future__ import annotations

import json
import subprocess
import sys

import pytest

from swarm.errors import ConfigError
from swarm.extras.learner.capacity import (
    CapacityPlan,
    Worker,
    _advice,
    demand_of,
    parse_workers,
    pool_rate,
    staleness_bound,
)

STEP = ["--rollouts", "120", "--train-s", "60", "--broadcast-s", "40"]


def plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "nodes.cli", "plan", *arguments], capture_output=True, text=True)


def test_a_feasible_plan_takes_the_cheapest_workers_and_exits_with_0() -> None:
    done = plan(*STEP, "--max-staleness", "3", "--worker", "4x1@0.5", "--worker", "2x4@9", "--headroom", "1", "--json")
    figures = json.loads(done.stdout)
    assert done.returncode == 0 and figures["feasible"] and figures["advice"] == []
    assert figures["publish_every"] == 2 and figures["required_rollouts_per_s"] == pytest.approx(3.0)
    assert figures["active"] == {"4x1@0.5": 3} and figures["bubble_ratio"] == 0.0


def test_an_infeasible_plan_says_what_would_have_to_change_and_exits_with_1() -> None:
    done = plan(*STEP, "--publish-every", "2", "--worker", "2x1.25")
    assert done.returncode == 1
    assert "0.5 rollouts/s are missing" in done.stdout
    assert "publish every 4 steps instead of 2" in done.stdout  # 40 / (60 - 48) = 3.3
    assert "lengthen a step to 68 s instead of 60 s" in done.stdout  # 48 + 20
    assert "train on 100 rollouts per step instead of 120" in done.stdout  # 2.5 * 40


def test_workers_whose_rollouts_would_be_too_old_do_not_suffice() -> None:
    slow = ["--rollouts", "60", "--train-s", "60", "--broadcast-s", "200", "--worker", "10x1"]
    done = plan(*slow, "--max-staleness", "5")
    assert done.returncode == 1
    assert "at most 7 steps; beyond 5 the learner drops rollouts" in done.stdout
    assert "learner waits    at least 0.0%" in done.stdout
    assert "the broadcast must take less than 120 s, got 200 s" in done.stdout  # (5 - 4 + 1) * 60
    assert "allow a staleness of 7 instead of 5" in done.stdout
    assert "lengthen a step to 103 s instead of 60 s" in done.stdout  # (200 + 6) / 2
    wider = plan(*slow, "--max-staleness", "7", "--publish-every", "4", "--json")
    figures = json.loads(wider.stdout)
    assert wider.returncode == 0 and figures["feasible"] and figures["staleness_bound"] == figures["max_staleness"] == 7


@pytest.mark.parametrize(
    ("broadcast_s", "staleness", "line", "changed"),
    [
        (200.0, 5, "allow a staleness of 7 instead of 5", (60.0, 7, 4)),
        (200.0, 5, "lengthen a step to 103 s", (103.0, 5, 4)),
        (130.0, 5, "publish every 3 steps instead of 4: staleness up to 5", (60.0, 5, 3)),
        (300.0, 5, "publish every 6 steps instead of 4, and allow a staleness of 11 instead of 5", (60.0, 11, 6)),
        (10.0, 0, "allow a staleness of 1 instead of 0", (60.0, 1, 1)),
    ],
)
def test_what_is_advised_against_rollouts_that_are_too_old_is_feasible(
    broadcast_s: float, staleness: int, line: str, changed: tuple[float, int, int]
) -> None:
    workers = parse_workers(["10x1"])
    demand = demand_of(60, 60.0, broadcast_s, None, staleness)
    before = CapacityPlan(demand, 1.0, 0.0, workers, staleness)
    assert not before.feasible and any(line in advice for advice in _advice(before))
    train_s, staleness, period = changed
    assert CapacityPlan(demand_of(60, train_s, broadcast_s, period, staleness), 1.0, 0.0, workers, staleness).feasible


def test_more_workers_are_taken_where_fewer_would_let_rollouts_grow_too_old() -> None:
    demand = demand_of(512, 12.0, 20.0, None, 4)
    bounded = CapacityPlan(demand, 1.0, 0.0, parse_workers(["40x6"]), 4)
    assert bounded.required == pytest.approx(128.0)  # 512 / (2 * 12 - 20); to keep the learner busy 96 are enough
    assert bounded.feasible and staleness_bound(demand, pool_rate(bounded.active)) == 4


def test_what_is_advised_is_feasible() -> None:
    workers = parse_workers(["2x1.25"])
    for rollouts, train_s, period in ((120, 60.0, 4), (120, 68.0, 2), (100, 60.0, 2)):
        assert CapacityPlan(demand_of(rollouts, train_s, 40.0, period, None), 1.0, 0.0, workers).feasible


def test_workers_are_read_and_bad_ones_refused() -> None:
    one, other = parse_workers(["2x1.5@0.4*0.5"])
    assert (one.rate, one.price, one.availability) == (1.5, 0.4, 0.5) and one.name != other.name
    assert parse_workers(["3"]) == (Worker("3 #0", 3.0),)
    for bad in ("", "x3", "0x1", "8xq", "1@-1", "-1", "1*2", "inf", "1e999", "nan"):
        with pytest.raises(ConfigError, match="--worker must be"):
            parse_workers([bad])


def test_the_period_is_given_or_follows_from_the_staleness() -> None:
    with pytest.raises(ConfigError, match="--max-staleness"):
        demand_of(1, 1.0, 0.0, None, None)
    assert demand_of(1, 1.0, 0.0, None, 5).publish_every == 4
    assert demand_of(1, 1.0, 0.0, 2, 5).publish_every == 2
    with pytest.raises(ConfigError, match="train_s"):
        demand_of(1, 0.0, 0.0, 1, None)
