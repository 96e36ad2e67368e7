"""Each alert comes when its cause is there, and not otherwise; each is on the page of the docs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from swarm.page.alerts import CHECKS, alerts
from swarm.page.node import NodeReader
from swarm.telemetry.live import state_text
from swarm.telemetry.records import EndEvent, Event, PauseEvent, ResumeEvent, RoundEvent
from tests.page.folders import ending_at, events
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
    return {alert.key for alert in alerts(node, now)}


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


CAUSES: dict[str, Callable[[RoundEvent], RoundEvent]] = {
    "entropy": _figure("entropy", 0.01),
    "skipped": _figure("train/num_skipped_steps", 1.0),
    "wrong-clock": _dropped("clock", 0.2),
    "refused": _dropped("unknown_task", 0.7),
    "slow": _late(tokens_per_s=500.0),
    "reward": lambda event: structs.replace(event, reward=0.5 if event.round < 60 else 0.2),
    "nothing-right": _late(reward=0.0),
    "alone": _late(alone_since=NOW - 300.0),
}


@pytest.mark.parametrize("key", CAUSES)
def test_its_cause_is_named(key: str, tmp_path: Path) -> None:
    found = alerts(_node(tmp_path, CAUSES[key]), NOW)
    assert key in {alert.key for alert in found}
    assert all(alert.text and alert.advice for alert in found)


def test_mastered_tasks_need_no_variety(tmp_path: Path) -> None:
    def change(event: RoundEvent) -> RoundEvent:
        return structs.replace(CAUSES["entropy"](event), reward=0.98)

    assert _keys(_node(tmp_path, change)) == set()


def test_reward_that_falls_as_others_take_over_is_told_apart(tmp_path: Path) -> None:
    def change(event: RoundEvent) -> RoundEvent:
        external = 0 if event.round < 60 else 6 * (event.round - 60)
        groups = {**event.groups, "used_local": 4 * event.round, "used_external": external}
        return structs.replace(event, groups=groups, reward=0.5 if event.round < 60 else 0.2)

    found = {alert.key: alert for alert in alerts(_node(tmp_path, change), NOW)}
    assert "reward" not in found
    assert "from 0% to 60%" in found["others"].text


def test_a_disk_that_fills_up_and_one_that_is_full(tmp_path: Path) -> None:
    node = _node(tmp_path)
    for free, level in ((2**30, "warning"), (2**20, "error")):
        node.free_bytes = free
        (alert,) = alerts(node, NOW)
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
    source = (ROOT / "swarm" / "page" / "alerts.py").read_text()
    keys = set(re.findall(r'Alert\(\s*"([a-z-]+)"', source))
    assert len(keys) >= len(CHECKS)
    page = (ROOT / "docs" / "page.md").read_text()
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
