"""Whether sharing helped: planted gains are found, with an interval that holds them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from swarm.telemetry.benefit.control import Benefit, benefit, is_enough
from swarm.telemetry.benefit.verdict import BY_CONTROL, by_control, verdict
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.ledger import Ledger
from swarm.telemetry.records import Event, RoundEvent
from swarm.telemetry.report import swarm_summary, write_report

from . import synthetic

TASKS = ("gcd", "lcm", "products")
ROUNDS = 100
COMPLETIONS = 64


def node(
    folder: Path,
    name: str,
    rewards: Sequence[float],
    seed: int,
    tasks: Sequence[str] = TASKS,
    seconds: float = 0.0,
    processor_s: float | None = None,
) -> PeerHistory:
    """A node whose true reward in round r is `rewards[r]`, alike on all tasks; each round takes as long."""
    rng = np.random.default_rng(seed)
    events: list[Event] = []
    for number, reward in enumerate(rewards, 1):
        found = {task: (float(rng.binomial(COMPLETIONS, reward)), COMPLETIONS) for task in tasks}
        mean = sum(total for total, _ in found.values()) / (COMPLETIONS * len(tasks))
        events.append(
            RoundEvent(
                round=number,
                reward=mean,
                groups=Ledger().snapshot(),
                tasks=found,
                timings={"generate": seconds / 2, "update": seconds / 2} if seconds else {},
                processor_s=processor_s,
            )
        )
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
    assert by_control(found).standing == "hurts"


def test_a_handful_of_rewards_is_no_verdict(tmp_path: Path) -> None:
    nodes = [node(tmp_path, f"peer-{k}", [0.3] * 2, k) for k in range(4)]
    few = benefit(nodes, node(tmp_path, "alone", [0.03] * 2, 9))
    assert few is not None and few["low"] > 1.0 and 0 < few["alone_rewards"] < 30
    assert not is_enough(few)
    told = by_control(few)
    assert (told.standing, told.word) == ("open", "Too early to say")
    assert f"too few rewards to rely on this: {few['alone_rewards']:.0f}." in told.why
    many = benefit(nodes, node(tmp_path, "often right", [0.1] * 2, 9))
    assert many is not None and is_enough(many)
    assert "too few" not in by_control(many).words


def timed(folder: Path, seconds: float, processor_s: float | None = None) -> Benefit:
    """Nodes that learn twice as much per round as their control, whose rounds take one second."""
    nodes = [node(folder, f"peer-{k}", ramp(0.6), k, seconds=seconds, processor_s=processor_s) for k in range(4)]
    alone = node(folder, "alone", ramp(0.3), 9, seconds=1.0, processor_s=None if processor_s is None else 1.0)
    return benefit(nodes, alone) or pytest.fail("nothing is known")


@pytest.mark.parametrize(
    ("seconds", "standing", "words"),
    [
        (1.2, "helps", "More per round, more in the same time."),
        (2.0, "mixed", "More per round, about as much in the same time."),
        (4.0, "mixed", "More per round, less in the same time."),
    ],
)
def test_the_clock_decides_beside_the_rounds(tmp_path: Path, seconds: float, standing: str, words: str) -> None:
    """Of a ramp, rounds that take k times as long see 1 / k: the rewards up to then are 2 / k of the control's."""
    found = timed(tmp_path, seconds)
    assert found["cumulative_ratio"] == pytest.approx(2.0, rel=0.05)
    in_time = found["in_time"]
    assert in_time is not None and in_time["ratio"] == pytest.approx(2 / seconds, rel=0.12)
    assert (in_time["seconds"], in_time["rounds_alone"]) == (pytest.approx(ROUNDS), ROUNDS)
    assert (found["seconds_together"], found["seconds_alone"]) == (pytest.approx(ROUNDS * seconds), pytest.approx(100))
    told = by_control(found)
    assert told.standing == standing
    assert told.why.startswith(words)
    assert told.line.endswith(f"in the same time {told.in_time}") and told.per_round.startswith("×2.0 (")


def test_processor_time_counts_where_it_is_known(tmp_path: Path) -> None:
    """Nodes that are quick by the clock, and take four times the processor time of the control."""
    found = timed(tmp_path / "known", 1.0, processor_s=4.0)
    in_time, processor = found["in_time"], found["in_processor_time"]
    assert in_time is not None and in_time["low"] > 1
    assert processor is not None and processor["high"] < 1
    assert found["processor_s_together"] == pytest.approx(400) and found["processor_s_alone"] == pytest.approx(100)
    told = by_control(found)
    assert told.standing == "mixed" and "for the same processor time: ×0.5" in told.why
    assert told.in_processor_time.startswith("×0.5 (") and "×0.5" not in told.in_time
    assert ", for the same processor time ×0.5" in told.line, "the clock that decides is in the headline"
    unknown = timed(tmp_path / "unknown", 1.0)
    assert unknown["in_processor_time"] is None and unknown["processor_s_alone"] is None
    assert by_control(unknown).standing == "helps" and "processor" not in by_control(unknown).line


def test_a_bounded_history_has_the_same_clock(tmp_path: Path) -> None:
    found = node(tmp_path, "a", ramp(0.6), 1, seconds=2.0)
    bounded = PeerHistory.read(found.path, max_rounds=ROUNDS)
    assert bounded.seconds == pytest.approx(found.seconds) == pytest.approx(200)


def test_nothing_is_said_where_nothing_can_be(tmp_path: Path) -> None:
    trained = node(tmp_path, "a", ramp(0.5), 1)
    assert benefit([], trained) is None
    assert benefit([trained], node(tmp_path, "not started", [], 2)) is None
    assert benefit([trained], node(tmp_path, "never right", [0.0] * ROUNDS, 3)) is None
    assert benefit([trained], node(tmp_path, "other tasks", ramp(0.5), 4, tasks=("chess",))) is None


def test_the_control_is_in_no_mean_of_the_summary(tmp_path: Path) -> None:
    nodes = [node(tmp_path, f"peer-{k}", ramp(0.6), k) for k in range(2)]
    control = node(tmp_path, "alone", ramp(0.3), 9)
    control.control = True
    write_report(tmp_path / "report", [*nodes, control], swarm_summary([*nodes, control], {}, {}))
    written = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert written["help"].keys() >= {"cumulative_ratio", "low", "high", "seconds_together", "seconds_alone", "in_time"}
    assert written["control"]["name"] == "alone"
    assert [peer["name"] for peer in written["peers"]] == ["peer-0", "peer-1"]
    assert written["mean_reward_last"] == pytest.approx(0.57, abs=0.05)
    assert verdict([*nodes, control]).how == BY_CONTROL
    without = swarm_summary(nodes, {}, {})
    assert without["help"] is None and without["control"] is None
    assert verdict(nodes).how != BY_CONTROL
