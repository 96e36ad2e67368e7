"""Readers of metrics files: repeated rounds, torn lines, files that grow, and the figures drawn from them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from swarm.figures import LAG_MAX
from swarm.telemetry import history as history_module
from swarm.telemetry.history import FIRST_ROUNDS, PeerHistory, mean, reward_window
from swarm.telemetry.records import (
    EndEvent,
    Event,
    GroupCounts,
    NoteEvent,
    RoundEvent,
    StartEvent,
    encode,
)
from swarm.telemetry.report import swarm_summary

from . import synthetic


def counts(**given: int) -> GroupCounts:
    return GroupCounts(
        generated=0, shared=0, received=0, used_local=given.get("local", 0), used_external=given.get("external", 0),
        dropped={}, reused_external=given.get("again", 0),
    )  # fmt: skip


def round_event(number: int, reward: float | None = 0.5, wall_s: float = 1.0, time: float = 0.0) -> RoundEvent:
    return RoundEvent(time=time, round=number, wall_s=wall_s, reward=reward, groups=counts(local=number))


def start(resumed_from: int | None = None) -> StartEvent:
    return StartEvent(time=0.0, peer_id="p", name="peer-1", rounds=100, resumed_from=resumed_from)


def history_of(folder: Path, *events: Event) -> PeerHistory:
    return PeerHistory.read(synthetic.write(folder, list(events)))


@st.composite
def lives(draw: st.DrawFn) -> tuple[bytes, dict[int, float], int]:
    """A file of several processes, each killed and resumed from some round reached before: (bytes, rewards, torn)."""
    text = b""
    expected: dict[int, float] = {}
    torn = 0
    resumed_from: int | None = None
    for life in range(draw(st.integers(1, 4))):
        text += encode(start(resumed_from))
        kept = resumed_from or 0
        expected = {number: reward for number, reward in expected.items() if number <= kept}
        for number in range(kept + 1, kept + 1 + draw(st.integers(0, 8))):
            expected[number] = (life * 1000 + number) / 10_000
            text += encode(round_event(number, expected[number]))
        if draw(st.booleans()):
            # Killed in the middle of a line; the next process ends it, as `JsonlSink` does.
            line = encode(round_event(max(expected, default=0) + 1))
            text += line[: draw(st.integers(1, len(line) - 2))] + b"\n"
            torn += 1
        resumed_from = draw(st.sampled_from([None, *expected]))
    return text, expected, torn


@given(lives())
def test_each_round_counts_once_whatever_was_repeated_or_torn(life: tuple[bytes, dict[int, float], int]) -> None:
    text, expected, torn = life
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        path.write_bytes(text)
        history = PeerHistory.read(path)
    assert [(event.round, event.reward) for event in history.series()] == sorted(expected.items())
    assert history.ignored_lines == torn
    assert history.peer_summary()["rounds"] == len(expected)


@given(lives(), st.lists(st.integers(0, 400), max_size=30))
def test_following_a_file_gives_the_same_as_reading_it(
    life: tuple[bytes, dict[int, float], int], pieces: list[int]
) -> None:
    text, _, _ = life
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        followed = PeerHistory(path)
        assert followed.tail() == []
        seen = []
        offset = 0
        for size in [*pieces, len(text)]:
            with path.open("ab") as file:
                file.write(text[offset : offset + size])
            offset += size
            seen += followed.tail()
        whole = PeerHistory(path)
        assert seen == whole.tail()
    assert followed.series() == whole.series()
    assert followed.peer_summary() == whole.peer_summary()
    assert followed.ignored_lines == whole.ignored_lines


def test_the_last_line_of_a_repeated_round_counts_without_a_start_between(tmp_path: Path) -> None:
    history = history_of(tmp_path, round_event(1, 0.1), round_event(2, 0.2), round_event(1, 0.3))
    assert [event.reward for event in history.series()] == [0.3, 0.2]
    assert history.latest is not None and history.latest.round == 1


def test_an_unfinished_line_waits(tmp_path: Path) -> None:
    line = encode(round_event(1))
    path = synthetic.write(tmp_path, [start()], torn=line[:-1])
    history = PeerHistory.read(path)
    assert history.rounds == {} and history.ignored_lines == 0
    with path.open("ab") as file:
        file.write(b"\n")
    assert history.tail() == [round_event(1)]


def test_rounds_beyond_the_checkpoint_are_lost_until_trained_again(tmp_path: Path) -> None:
    history = history_of(tmp_path, start(), *[round_event(n) for n in range(1, 6)], start(resumed_from=2))
    assert sorted(history.rounds) == [1, 2]
    assert history.groups["used_local"] == 2
    assert history.restarts == 1


def test_a_crash_before_the_first_checkpoint_starts_over(tmp_path: Path) -> None:
    history = history_of(tmp_path, start(), round_event(1), start(), round_event(1, 0.9))
    assert [event.reward for event in history.series()] == [0.9]
    assert history.restarts == 1


def test_a_new_run_after_an_ended_one_forgets_it(tmp_path: Path) -> None:
    over = EndEvent(time=0.0, round=1, reason="done")
    history = history_of(tmp_path, start(), round_event(1, wall_s=50), over, start(), round_event(1, 0.9))
    assert history.restarts == 0
    assert history.wall_s == 1.0
    assert history.phase == "running"
    assert history.tail() == []


def test_resuming_on_purpose_is_no_crash(tmp_path: Path) -> None:
    over = EndEvent(time=0.0, round=1, reason="interrupted")
    history = history_of(tmp_path, start(), round_event(1, wall_s=5), over, start(1), round_event(2, wall_s=7))
    assert history.restarts == 0
    assert history.wall_s == 12
    assert history.seconds_per_round() == 7


def test_a_replaced_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = synthetic.write(tmp_path, [start(), round_event(1), round_event(2)])
    history = PeerHistory.read(path)
    path.write_bytes(encode(start()))
    history.tail()
    assert history.rounds == {}


@pytest.mark.parametrize(("rounds", "window"), [(0, 1), (1, 1), (5, 2), (16, 8), (24, 8), (80, 8), (200, 20)])
def test_rewards_are_compared_over_a_tenth_of_a_run_and_over_enough_of_a_short_one(rounds: int, window: int) -> None:
    assert reward_window(rounds) == window


def test_first_and_last_rewards(tmp_path: Path) -> None:
    rewards = [*[0.0, 0.2] * 4, *[0.5] * 10, None, *[1.0] * 7]
    events = [round_event(n, reward) for n, reward in enumerate(rewards, 1)]
    history = history_of(tmp_path, start(), *events)
    # Of 26 rounds 8 count; the unknown one is left out of the mean.
    assert history.reward_first() == pytest.approx(0.1)
    assert history.reward_last() == 1.0
    assert history.recent_reward(9) == pytest.approx((0.5 + 7) / 8)
    single = history_of(tmp_path / "single", start(), round_event(1, 0.3))
    assert single.reward_first() == single.reward_last() == 0.3


def test_evaluations(tmp_path: Path) -> None:
    before, after = synthetic.evaluation(0, 0, 0.1), synthetic.evaluation(0, 2, 0.3)
    events = [start(), before, round_event(1), round_event(2)]
    assert history_of(tmp_path, *events).peer_summary()["eval_after"] is None
    done = history_of(tmp_path, *events, after).peer_summary()
    assert (done["eval_before"], done["eval_after"]) == (before.accuracy, after.accuracy)
    # An evaluation of a policy that was lost says nothing about the one that goes on.
    lost = history_of(tmp_path, *events, after, start(resumed_from=1)).peer_summary()
    assert (lost["eval_before"], lost["eval_after"]) == (before.accuracy, None)


def test_suites(tmp_path: Path) -> None:
    before, after = synthetic.suite(0, 0, 0.1), synthetic.suite(0, 2, 0.3)
    # The one of round 0 ran beside training, and took until then.
    events = [start(), round_event(1), before, round_event(2), after]
    history = history_of(tmp_path, *events)
    assert history.suite_before("arithmetic") == before and history.suite_after("arithmetic") == after
    assert history.peer_summary()["suites"] == {"arithmetic": after.scores.figures}
    said = "arithmetic after round 2: avg@4 0.300 (0.250 to 0.350), pass@4 0.300 (0.250 to 0.350)"
    assert history.moments[-1].text == said
    lost = history_of(tmp_path, *events, start(resumed_from=1))
    assert lost.suite_after("arithmetic") == before, "the policy after round 2 was lost"
    late = history_of(tmp_path, start(), round_event(1), after, start(resumed_from=1))
    assert late.peer_summary()["suites"] == {}


def test_phases(tmp_path: Path) -> None:
    assert PeerHistory.read(tmp_path / "peer-9" / "metrics.jsonl").phase == "waiting"
    assert history_of(tmp_path, start()).phase == "running"
    assert history_of(tmp_path, start(), EndEvent(time=0.0, round=0, reason="error")).phase == "error"


def test_a_kill_changes_nothing_in_the_summary_but_time_and_restarts(tmp_path: Path) -> None:
    whole = PeerHistory.read(synthetic.write(tmp_path / "a", synthetic.peer_events())).peer_summary()
    killed = PeerHistory.read(synthetic.write(tmp_path / "b", synthetic.killed_and_resumed())).peer_summary()
    assert killed["restarts"] == 1 and killed["wall_s"] == 15 + 25
    killed["restarts"], killed["wall_s"] = whole["restarts"], whole["wall_s"]
    assert killed == whole


def test_notes_are_kept(tmp_path: Path) -> None:
    history = history_of(tmp_path, start(), NoteEvent(time=3.0, text="bootstrap unreachable", level="warning"))
    assert [(moment.text, moment.level) for moment in history.moments] == [("bootstrap unreachable", "warning")]


def test_swarm_summary_shape_and_means(tmp_path: Path) -> None:
    histories = [PeerHistory.read(path) for path in synthetic.swarm(tmp_path, 2, 20)]
    histories.append(PeerHistory.read(tmp_path / "absent" / "metrics.jsonl"))
    summary = swarm_summary(histories, {"seed": 1}, {"swarm": "0.1.0"})
    assert summary.keys() >= {
        "peers", "mean_reward_first", "mean_reward_last", "mean_eval_before", "mean_eval_after", "config", "versions",
    }  # fmt: skip
    one, two, absent = summary["peers"]
    assert one.keys() >= {
        "peer_id", "rounds", "reward_first", "reward_last", "eval_before", "eval_after", "groups", "tokens_generated",
        "wall_s",
    }  # fmt: skip
    assert one["peer_id"] == "12D3KooWpeer1" and one["rounds"] == 20 and one["tokens_generated"] == 20 * 900
    assert absent["peer_id"] is None and absent["reward_first"] is None and absent["rounds"] == 0
    assert absent["groups"]["dropped"] == {}
    assert one["reward_last"] is not None and two["reward_last"] is not None
    assert summary["mean_reward_last"] == pytest.approx((one["reward_last"] + two["reward_last"]) / 2)
    nobody = swarm_summary([], {}, {})
    assert nobody["mean_reward_first"] is None and nobody["mean_eval_after"] is None


def test_mean_of_nothing_known() -> None:
    assert mean([None, None]) is None
    assert mean([None, 1.0, 2.0]) == 1.5


def test_a_bounded_history_keeps_the_first_and_the_last_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "PIECE_BYTES", 1_000)
    path = synthetic.write(tmp_path, [start(), *(round_event(number, number / 1_000) for number in range(1, 201))])
    history = PeerHistory.read(path, max_rounds=30)
    assert list(history.rounds) == [*range(1, FIRST_ROUNDS + 1), *range(171, 201)]
    whole = PeerHistory.read(path)
    assert history.early_reward(FIRST_ROUNDS) == whole.early_reward(FIRST_ROUNDS)
    assert history.recent_reward(20) == whole.recent_reward(20)
    assert history.latest == whole.latest


def test_a_report_of_a_long_run_reads_the_details_of_few_rounds(tmp_path: Path) -> None:
    rounds = [
        replace(round_event(number, number / 1_000), figures={"entropy": 1.0, LAG_MAX: float(number == 501)})
        for number in range(1, 1_001)
    ]
    path = synthetic.write(tmp_path, [start(), *rounds])
    whole, thin = PeerHistory.read(path), PeerHistory.read(path, max_detailed=100)
    assert [event.reward for event in thin.series()] == [event.reward for event in whole.series()]
    detailed = [event.round for event in thin.series() if event.figures]
    assert detailed == [*range(16, 1_001, 16), 1_000]
    assert thin.max_lag == whole.max_lag == 1, "also in a round without details"
    few = PeerHistory.read(synthetic.write(tmp_path / "few", [start(), *rounds[:100]]), max_detailed=100)
    assert all(event.figures for event in few.series())
