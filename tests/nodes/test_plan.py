from __future__ import annotations

import json
import subprocess
import sys

import pytest

from nodes.commands.measuring.plan import CapacityPlan, demand_of, parse_workers
from swarm.central.capacity import Worker
from swarm.errors import ConfigError

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


def test_exactly_one_of_period_and_staleness_is_given() -> None:
    for period, staleness in ((None, None), (1, 1)):
        with pytest.raises(ConfigError, match="either"):
            demand_of(1, 1.0, 0.0, period, staleness)
    with pytest.raises(ConfigError, match="train_s"):
        demand_of(1, 0.0, 0.0, 1, None)
