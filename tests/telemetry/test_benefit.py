"""Whether sharing helped: planted gains are found, with an interval that holds them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from swarm.telemetry.benefit import benefit, in_words, is_enough
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.ledger import Ledger
from swarm.telemetry.records import Event, RoundEvent
from swarm.telemetry.report import page, write_report
from swarm.telemetry.summary import swarm_summary

from . import synthetic

TASKS = ("gcd", "lcm", "products")
ROUNDS = 100
COMPLETIONS = 64


def node(folder: Path, name: str, rewards: Sequence[float], seed: int, tasks: Sequence[str] = TASKS) -> PeerHistory:
    """A node whose true reward in round r is `rewards[r]`, alike on all tasks."""
    rng = np.random.default_rng(seed)
    events: list[Event] = []
    for number, reward in enumerate(rewards, 1):
        found = {task: (float(rng.binomial(COMPLETIONS, reward)), COMPLETIONS) for task in tasks}
        mean = sum(total for total, _ in found.values()) / (COMPLETIONS * len(tasks))
        events.append(RoundEvent(round=number, reward=mean, groups=Ledger().snapshot(), tasks=found))
    return PeerHistory.read(synthetic.write(folder / name, events), name)


def ramp(last: float, rounds: int = ROUNDS) -> list[float]:
    return [last * number / rounds for number in range(1, rounds + 1)]


def test_a_planted_gain_is_found_and_its_interval_holds_it(tmp_path: Path) -> None:
    nodes = [node(tmp_path, f"peer-{k}", ramp(0.6), k) for k in range(4)]
    found = benefit(nodes, node(tmp_path, "alone", ramp(0.3), 9))
    assert found is not None
    assert found["rounds"] == ROUNDS
    assert found["cumulative_ratio"] == pytest.approx(2.0, rel=0.05)
    assert found["low"] < 2.0 < found["high"] and found["low"] > 1.5
    assert found["together"] == pytest.approx(0.57, abs=0.03) and found["alone"] == pytest.approx(0.285, abs=0.03)
    # Twice as steep, so as high after half of the rounds; both sides are averages over the last ten.
    assert found["rounds_to_match"] == pytest.approx(53, abs=6)
    assert "With others 0.5" in in_words(found) and "interval" in in_words(found)


def test_without_a_gain_the_interval_holds_one(tmp_path: Path) -> None:
    held = 0
    for trial in range(20):
        folder = tmp_path / str(trial)
        nodes = [node(folder, f"peer-{k}", ramp(0.4), 100 * trial + k) for k in range(4)]
        found = benefit(nodes, node(folder, "alone", ramp(0.4), 100 * trial + 9))
        assert found is not None
        held += found["low"] <= 1.0 <= found["high"]
    # One control only is drawn from its tasks alone: the interval is somewhat narrow, and the seeds are fixed.
    assert held >= 14


def test_nodes_that_differ_widen_the_interval(tmp_path: Path) -> None:
    nodes = [node(tmp_path, "a", ramp(0.6), 1), node(tmp_path, "b", ramp(0.2), 2)]
    control = node(tmp_path, "alone", ramp(0.3), 3)
    apart, alike = benefit(nodes, control), benefit(nodes[:1], control)
    assert apart is not None and alike is not None
    assert apart["high"] - apart["low"] > 2 * (alike["high"] - alike["low"])


def test_only_rounds_that_all_have_finished_are_compared(tmp_path: Path) -> None:
    nodes = [node(tmp_path, "a", ramp(0.6), 1), node(tmp_path, "b", ramp(0.6)[:40], 2)]
    found = benefit(nodes, node(tmp_path, "alone", ramp(0.3), 3))
    assert found is not None and found["rounds"] == 40
    assert found["cumulative_ratio"] == pytest.approx(2.0, rel=0.15)


def test_a_swarm_that_stays_behind_never_matches(tmp_path: Path) -> None:
    found = benefit([node(tmp_path, "a", ramp(0.2), 1)], node(tmp_path, "alone", ramp(0.6), 2))
    assert found is not None and found["rounds_to_match"] is None
    assert found["high"] < 1.0
    assert "was not reached" in in_words(found)


def test_a_lone_node_that_ends_where_the_others_began_matches_nothing(tmp_path: Path) -> None:
    found = benefit([node(tmp_path, "a", ramp(0.6), 1)], node(tmp_path, "alone", [0.3, *[0.0] * (ROUNDS - 1)], 2))
    assert found is not None and "no more than what the others began with" in in_words(found)


def test_a_handful_of_rewards_is_no_verdict(tmp_path: Path) -> None:
    nodes = [node(tmp_path, f"peer-{k}", [0.3] * 2, k) for k in range(4)]
    few = benefit(nodes, node(tmp_path, "alone", [0.03] * 2, 9))
    assert few is not None and few["low"] > 1.0 and 0 < few["alone_rewards"] < 30
    assert not is_enough(few)
    assert f"too few rewards to rely on this: {few['alone_rewards']:.0f}." in in_words(few)
    many = benefit(nodes, node(tmp_path, "often right", [0.1] * 2, 9))
    assert many is not None and is_enough(many)
    assert "too few" not in in_words(many)


def test_nothing_is_said_where_nothing_can_be(tmp_path: Path) -> None:
    trained = node(tmp_path, "a", ramp(0.5), 1)
    assert benefit([], trained) is None
    assert benefit([trained], node(tmp_path, "not started", [], 2)) is None
    assert benefit([trained], node(tmp_path, "never right", [0.0] * ROUNDS, 3)) is None
    assert benefit([trained], node(tmp_path, "other tasks", ramp(0.5), 4, tasks=("chess",))) is None


def test_the_report_opens_with_the_answer_and_the_control_is_in_no_mean(tmp_path: Path) -> None:
    nodes = [node(tmp_path, f"peer-{k}", ramp(0.6), k) for k in range(2)]
    control = node(tmp_path, "alone", ramp(0.3), 9)
    summary = swarm_summary(nodes, {}, {}, control)
    write_report(tmp_path / "report", nodes, summary, control)
    written = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert written["help"].keys() >= {"cumulative_ratio", "low", "high", "rounds_to_match"}
    assert written["control"]["name"] == "alone"
    assert [peer["name"] for peer in written["peers"]] == ["peer-0", "peer-1"]
    assert written["mean_reward_last"] == pytest.approx(0.57, abs=0.05)
    text = page(nodes, summary, control)
    assert text.index(in_words(summary["help"] or pytest.fail("no help"))) < text.index("Mean reward")
    assert "alone" in text
    without = swarm_summary(nodes, {}, {})
    assert without["help"] is None and without["control"] is None
    assert 'class="answer"' not in page(nodes, without)
