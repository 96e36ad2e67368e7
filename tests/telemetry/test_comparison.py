from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from swarm.telemetry.benefit.comparison import (
    Evaluated,
    Point,
    SwarmOutcome,
    compare,
    learning_curve,
    markdown,
    mean_learning_curve,
    node_outcome,
    ratio,
)
from swarm.telemetry.benefit.picture import Section, mean_curve, write_comparisons
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.intervals import bootstrap_mean, bootstrap_ratio
from swarm.telemetry.records import EvaluationEvent, RoundEvent
from tests.telemetry.outcomes import node, swarm
from tests.telemetry.synthetic import peer_events, write


def test_a_drawdown_is_the_largest_fall_of_the_running_mean() -> None:
    # Of 20 rounds a tenth are 2: means .1 .3 .5 .35 .1 .25 .6 .6 ... fall from .5 to .1 at most.
    rewards = [0.1, 0.1, 0.5, 0.5, 0.2, 0.0, 0.5, 0.7, *[0.5] * 12]
    assert node(rewards).drawdown == pytest.approx(0.4)
    assert node([0.1, 0.2, 0.3]).drawdown == 0.0


def test_groups_with_signal_are_those_used_and_those_left_out() -> None:
    found = node([0.5] * 4, used_local=6, not_sampled=2, used_external=3, reused=1)
    assert found.signal == 2.0
    assert found.others_used == 1.0


def test_a_node_s_outcome_is_that_of_its_history(tmp_path: Path) -> None:
    events = peer_events(num_rounds=20, target=20)
    found = node_outcome(PeerHistory.read(write(tmp_path, events)))
    rounds = [event for event in events if isinstance(event, RoundEvent)]
    assert found.rewards == [event.reward for event in rounds]
    assert found.cumulative_reward == pytest.approx(sum(event.reward or 0 for event in rounds))
    before, after = (event.accuracy for event in events if isinstance(event, EvaluationEvent))
    assert (found.accuracy_before, found.accuracy_after) == (before, after)
    assert found.tokens == 20 * 900
    first, last_one = found.evaluations
    assert (first.round, first.tokens, first.seconds, first.accuracy) == (0, 0, 0.0, before)
    assert (last_one.round, last_one.tokens, last_one.accuracy) == (20, 20 * 900, after)
    assert last_one.seconds == pytest.approx(20 * (0.2 + 0.05 + 0.001 + 0.2)), "the stages, not the time on the wall"
    assert found.seconds == last_one.seconds
    assert all(correct / asked == after for correct, asked in last_one.tasks.values())
    last = rounds[-1].groups
    assert found.signal == (last["used_local"] + last["local"]["not_sampled"]) / 20


def test_rows_are_compared_with_the_first_over_the_seeds_that_both_have() -> None:
    alone = [swarm("8/0", 0, 1.0, 3.0), swarm("8/0", 1, 4.0, 4.0)]
    together = [swarm("4/4", 0, 3.0, 3.0), swarm("4/4", 1, 5.0, 7.0), swarm("4/4", 2, 90.0, 90.0)]
    first, second = compare({"8/0": alone, "4/4": together, "2/6": []})
    assert (first.row, second.row) == ("8/0", "4/4")
    assert first.ratio is not None and first.ratio.value == 1.0 and first.ratio.interval == (1.0, 1.0)
    assert first.cumulative_reward.value == pytest.approx(3.0)
    assert second.ratio is not None and second.ratio.value == pytest.approx((3 + 6) / (2 + 4))
    assert second.ratio.n == 2 and second.seeds == [0, 1, 2]
    assert second.cumulative_reward.value == pytest.approx((3 + 6 + 90) / 3)
    assert ratio(together, []) is None
    assert ratio(together, [swarm("8/0", 0, 0.0)]) is None, "there is nothing to divide by"
    (only,) = compare({"8/0": alone[:1]})
    assert only.cumulative_reward.interval is None and only.ratio is not None and only.ratio.interval is None
    text = markdown(compare({"8/0": alone, "4/4": together[:2]}), "8/0")
    assert "| 4/4 | 4.50 (3.00 to 6.00) | +50.0% (+50.0% to +50.0%) |" in text
    assert text.count("\n") == 4
    assert "| tokens a node | seconds a node | seeds |" in text and "| 100 | – | 2 |" in text
    timed = [replace(outcome, nodes=[replace(each, seconds=90.0) for each in outcome.nodes]) for outcome in alone]
    assert "| 100 | 90 |" in markdown(compare({"8/0": timed}), "8/0")


def test_a_bootstrap_interval_agrees_with_the_normal_one_where_that_holds() -> None:
    values = np.random.default_rng(1).normal(3.0, 1.0, 400)
    found = bootstrap_mean(values)
    assert found is not None
    half = 1.96 * values.std() / 20
    assert found == pytest.approx((values.mean() - half, values.mean() + half), abs=0.01)
    assert bootstrap_mean([1.0]) is None


def test_what_pairs_have_in_common_does_not_widen_the_interval_of_their_ratio() -> None:
    seeds = np.array([1.0, 5.0, 9.0, 2.0])
    found = bootstrap_ratio(1.5 * seeds, seeds)
    assert found == pytest.approx((1.5, 1.5))
    unpaired = bootstrap_ratio(1.5 * seeds[::-1], seeds)
    assert unpaired is not None and unpaired[1] - unpaired[0] > 0.5
    assert bootstrap_ratio([1.0], [1.0]) is None
    assert bootstrap_ratio([1.0, 1.0], [0.0, 0.0]) is None


def test_a_learning_curve_is_the_mean_of_nodes_where_all_were_evaluated() -> None:
    early = [Evaluated(0, 0, 0.0, 0.1, {}), Evaluated(10, 80, 4.0, 0.2, {}), Evaluated(20, 160, 8.0, 0.3, {})]
    late = [Evaluated(0, 0, 0.0, 0.3, {}), Evaluated(20, 200, 16.0, 0.7, {})]
    nodes = [replace(node([0.1] * 20), evaluations=each) for each in (early, late)]
    curve = learning_curve(SwarmOutcome("4/4", 0, nodes, 1.0))
    assert curve == [Point(0, 0.0, 0.0, pytest.approx(0.2)), Point(20, 180.0, 12.0, 0.5)]
    other = SwarmOutcome("4/4", 1, [replace(node([0.1] * 20), evaluations=late)], 1.0)
    start, end = mean_learning_curve([SwarmOutcome("4/4", 0, nodes, 1.0), other])
    assert (end.tokens.value, end.seconds.value) == (190.0, 14.0)
    assert end.accuracy.value == pytest.approx(0.6) and end.accuracy.interval == pytest.approx((0.5, 0.7))
    assert mean_learning_curve([]) == []


def test_the_picture_has_accuracies_where_nodes_were_evaluated_in_between(tmp_path: Path) -> None:
    evaluations = [Evaluated(10 * k, 100 * k, 2.0 * k, 0.1 * k, {}) for k in range(3)]

    def height(kept: int) -> int:
        nodes = [replace(node([0.1] * 20), evaluations=evaluations[:kept])]
        outcomes = [SwarmOutcome("4/4", seed, nodes, 1.0) for seed in range(2)]
        write_comparisons(tmp_path / "picture.png", [Section("sparse", {"8/0": [], "4/4": outcomes})])
        return int.from_bytes((tmp_path / "picture.png").read_bytes()[20:24], "big")  # of the PNG's header

    assert height(3) == 2 * height(2)


def test_the_curve_is_the_mean_over_the_nodes_that_got_so_far(tmp_path: Path) -> None:
    early, late = node([0.1, 0.2, 0.3]), node([0.5])
    outcomes = [SwarmOutcome("4/4", 0, [early, late], 1.0)]
    assert mean_curve(outcomes) == pytest.approx([0.3, 0.2, 0.3])
    path = tmp_path / "picture.png"
    write_comparisons(path, [Section("sparse", {"8/0": [], "4/4": outcomes})])
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5_000
