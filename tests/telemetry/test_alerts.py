"""Each alert comes when its cause is there, and not otherwise; each is on the page of the docs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec import structs

from swarm.telemetry.alerts import CHECKS
from swarm.telemetry.curves import SCORER_FAILURES
from swarm.telemetry.live import state_text
from swarm.telemetry.nodes import NodeReader
from swarm.telemetry.records import EndEvent, Event, NoteEvent, PauseEvent, ResumeEvent, RoundEvent
from tests.telemetry.folders import ending_at, events
from tests.telemetry.synthetic import EPOCH, write

ROOT = Path(__file__).parent.parent.parent
NOW = EPOCH + 10_000
PLENTY = 2**40


def _node(folder: Path, change: Callable[[RoundEvent], RoundEvent] = lambda event: event, *more: Event) -> NodeReader:
    changed = [change(event) if isinstance(event, RoundEvent) else event for event in events(1, 120, 0.0)]
    write(folder, [*ending_at(NOW, changed), *more])
    node = NodeReader(folder)
    node.read()
    node.free_bytes = PLENTY
    return node


def _keys(node: NodeReader, now: float = NOW) -> set[str]:
    return {alert.key for alert in node.alerts(now)}


def test_a_healthy_node_has_none(tmp_path: Path) -> None:
    assert _keys(_node(tmp_path)) == set()


def test_a_node_that_has_not_started_has_none(tmp_path: Path) -> None:
    node = NodeReader(tmp_path / "nothing")
    assert not node.read()
    assert _keys(node) == set()


def _figure(name: str, late: float) -> Callable[[RoundEvent], RoundEvent]:
    """A figure that changes after round 60."""
    return lambda event: structs.replace(event, figures={**event.figures, name: late}) if event.round > 60 else event


def _dropped(reason: str, share: float) -> Callable[[RoundEvent], RoundEvent]:
    def change(event: RoundEvent) -> RoundEvent:
        groups = event.groups
        return structs.replace(event, groups={**groups, "dropped": {reason: int(share * groups["received"])}})

    return change


def _late(**fields: object) -> Callable[[RoundEvent], RoundEvent]:
    return lambda event: structs.replace(event, **fields) if event.round > 60 else event


def _slower(neighbours: int | None) -> Callable[[RoundEvent], RoundEvent]:
    return _late(timings={"generate": 0.9}, neighbours=neighbours)


CAUSES: dict[str, Callable[[RoundEvent], RoundEvent]] = {
    "entropy": _figure("entropy", 0.01),
    "skipped": _figure("train/num_skipped_steps", 1.0),
    "wrong-clock": _dropped("clock", 0.2),
    "refused": _dropped("unknown_task", 0.7),
    "slow": _slower(neighbours=0),
    "reward": lambda event: structs.replace(event, reward=0.5 if event.round < 60 else 0.2),
    "nothing-right": lambda event: structs.replace(event, reward=0.0),
    "no-groups": _late(reward=None, problem="the first was not graded: no key"),
    "alone": _late(alone_since=NOW - 300.0),
}


@pytest.mark.parametrize("key", CAUSES)
def test_its_cause_is_named(key: str, tmp_path: Path) -> None:
    found = _node(tmp_path, CAUSES[key]).alerts(NOW)
    assert key in {alert.key for alert in found}
    assert all(alert.text and alert.advice for alert in found)


def test_other_nodes_that_share_the_cores_are_no_other_program(tmp_path: Path) -> None:
    assert _keys(_node(tmp_path / "beside", _slower(neighbours=1))) == set()
    assert _keys(_node(tmp_path / "not looked", _slower(neighbours=None))) == set()


def test_a_collapse_is_an_alert_as_soon_as_it_is_clear_and_noise_is_none(tmp_path: Path) -> None:
    def collapse(event: RoundEvent) -> RoundEvent:
        return structs.replace(event, reward=0.0 if event.round > 60 else 0.02)

    def noise(event: RoundEvent) -> RoundEvent:
        """Three answers right in 120 rounds, none of them in the last 43: chance may do that."""
        groups = {**event.groups, "used_local": sum(event.round >= each for each in (3, 40, 77)), "local": {}}
        return structs.replace(event, reward=1 / 64 if event.round in (3, 40, 77) else 0.0, groups=groups)

    (alert,) = _node(tmp_path / "collapse", collapse).alerts(NOW)
    assert alert.key == "reward" and "from 0.020 at its best to 0.000" in alert.text
    assert "reward" not in _keys(_node(tmp_path / "noise", noise))


def test_reward_that_never_rose_has_not_fallen(tmp_path: Path) -> None:
    def nothing(event: RoundEvent) -> RoundEvent:
        return structs.replace(event, reward=0.0, groups={**event.groups, "used_local": 0, "local": {}})

    keys = _keys(_node(tmp_path, nothing))
    assert "nothing-right" in keys and "reward" not in keys


def test_mastered_tasks_need_no_variety(tmp_path: Path) -> None:
    def change(event: RoundEvent) -> RoundEvent:
        return structs.replace(CAUSES["entropy"](event), reward=0.98)

    assert _keys(_node(tmp_path, change)) == set()


def test_reward_that_falls_as_others_take_over_is_told_apart(tmp_path: Path) -> None:
    def change(event: RoundEvent) -> RoundEvent:
        external = 0 if event.round < 60 else 6 * (event.round - 60)
        groups = {**event.groups, "used_local": 4 * event.round, "used_external": external}
        return structs.replace(event, groups=groups, reward=0.5 if event.round < 60 else 0.2)

    found = {alert.key: alert for alert in _node(tmp_path, change).alerts(NOW)}
    assert "reward" not in found
    assert "from 0% to 60%" in found["others"].text


def test_a_disk_that_fills_up_and_one_that_is_full(tmp_path: Path) -> None:
    node = _node(tmp_path)
    for free, level in ((2**30, "warning"), (2**20, "error")):
        node.free_bytes = free
        (alert,) = node.alerts(NOW)
        assert (alert.key, alert.level) == ("disk", level)


def test_silence_and_an_end_with_an_error(tmp_path: Path) -> None:
    assert _keys(_node(tmp_path / "silent"), NOW + 3_600) == {"silent"}
    ended = _node(tmp_path / "ended", lambda event: event, EndEvent(time=NOW, round=120, reason="error"))
    assert _keys(ended, NOW + 3_600) == {"failed"}
    done = _node(tmp_path / "done", lambda event: event, EndEvent(time=NOW, round=120, reason="done"))
    assert _keys(done, NOW + 3_600) == set()


def test_a_control_is_meant_to_be_alone(tmp_path: Path) -> None:
    write(tmp_path, ending_at(NOW, [CAUSES["alone"](e) if isinstance(e, RoundEvent) else e for e in events(1, 90, 0)]))
    node = NodeReader(tmp_path, control=True)
    node.read()
    node.free_bytes = PLENTY
    assert _keys(node) == set()


def test_a_resumed_process_is_judged_by_its_own_rounds(tmp_path: Path) -> None:
    again = events(1, 10, 0.0)[0]
    node = _node(tmp_path, CAUSES["slow"], structs.replace(again, time=NOW, resumed_from=50))  # type: ignore[call-arg]
    assert "slow" not in _keys(node)
    assert node.curves["reward"].points()[-1][0] == 50


def test_the_docs_have_every_alert_and_the_pages_that_it_names() -> None:
    source = (ROOT / "swarm" / "telemetry" / "alerts.py").read_text()
    keys = set(re.findall(r'Alert\(\s*"([a-z-]+)"', source))
    assert len(keys) >= len(CHECKS)
    page = (ROOT / "docs" / "operate.md").read_text()
    assert {key for key in keys if f"| `{key}` |" not in page} == set()
    for name, anchor in re.findall(r'"([a-z]+\.md)(?:#([a-z-]+))?"', source):
        headings = [line for line in (ROOT / "docs" / name).read_text().splitlines() if line.startswith("#")]
        anchors = {re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in headings}
        assert not anchor or anchor in anchors, f"{name}#{anchor}"


def test_a_node_that_pauses_is_neither_silent_nor_alone(tmp_path: Path) -> None:
    node = _node(
        tmp_path, lambda event: structs.replace(event, alone_since=NOW - 500), PauseEvent(time=NOW, why="asked")
    )
    assert _keys(node, NOW + 100_000) == set()


def test_neither_a_restart_nor_the_end_of_a_pause_is_a_silence(tmp_path: Path) -> None:
    hours = 9 * 3_600.0
    lonely = _late(alone_since=NOW - 300.0)
    start = structs.replace(events(1, 1, 0.0)[0], time=NOW + hours, resumed_from=120)
    restarted = _node(tmp_path / "restarted", lonely, start)
    assert _keys(restarted, NOW + hours + 5) == set()
    assert state_text(restarted.history, NOW + hours + 5) == "restarted x1"
    assert "silent" in _keys(restarted, NOW + 2 * hours)
    pause = [PauseEvent(time=NOW, why="asked"), ResumeEvent(time=NOW + hours, paused_s=hours)]
    paused = _node(tmp_path / "paused", lambda event: event, *pause)
    assert _keys(paused, NOW + hours + 5) == set() and state_text(paused.history, NOW + hours + 5) == "running"


def _sparse(rewarded: Sequence[int]) -> Callable[[RoundEvent], RoundEvent]:
    """A group with signal in each of the rounds that are named, and no reward in the others."""

    def change(event: RoundEvent) -> RoundEvent:
        groups = {**event.groups, "used_local": sum(each <= event.round for each in rewarded), "local": {}}
        return structs.replace(event, reward=rewarded.count(event.round) / 64, groups=groups)

    return change


@pytest.mark.parametrize(
    ("rewarded", "collapsed"), [([1, 1, 2, 3, 3], True), ([2, 5, 13, 60, 95], False), ([1], False)]
)
def test_a_collapse_within_the_first_rounds_is_told_from_a_sparse_start(
    rewarded: list[int], collapsed: bool, tmp_path: Path
) -> None:
    found = {alert.key: alert for alert in _node(tmp_path, _sparse(rewarded)).alerts(NOW)}
    assert ("reward" in found and found["reward"].level == "error") == collapsed


def test_a_reward_function_that_fails_is_named_with_its_first_error(tmp_path: Path) -> None:
    def failing(event: RoundEvent) -> RoundEvent:
        return structs.replace(event, reward=0.0, counters={SCORER_FAILURES: 3 * event.round})

    told = NoteEvent(time=NOW, text="task 't': its reward function raised KeyError('1')", level="debug",
                     alert="scorer_failures")  # fmt: skip
    (alert,) = (each for each in _node(tmp_path, failing, told).alerts(NOW) if each.key == "reward-fails")
    assert alert.level == "error" and "KeyError('1')" in alert.text
    assert _node(tmp_path / "else", failing).history.figures.useless


def test_what_stops_all_questions_is_named_by_the_first_error(tmp_path: Path) -> None:
    def refused(event: RoundEvent) -> RoundEvent:
        return structs.replace(event, reward=None, problem="connection refused" if event.round == 1 else "it is down")

    (alert,) = _node(tmp_path, refused).alerts(NOW)
    assert (alert.key, alert.level) == ("no-groups", "error")
    assert "the last 120 rounds" in alert.text and "connection refused" in alert.text


def test_a_learning_rate_that_destroys_is_said_from_the_start(tmp_path: Path) -> None:
    start = structs.replace(events(1, 1, 0.0)[0], time=NOW, config={"update": {"learning_rate": 1e5}})  # type: ignore[call-arg]
    write(tmp_path, [start])
    node = NodeReader(tmp_path)
    node.read()
    assert [alert.key for alert in node.alerts(NOW + 1)] == ["learning-rate"]
