"""`swarm top`, as people run it."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import pytest
from msgspec import structs
from rich.console import Console

from nodes.commands import watching as top
from nodes.commands.demo import _Watch
from nodes.commands.watching import find_nodes, show_top
from swarm.errors import ConfigError
from swarm.telemetry import nodes as module
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.live import LiveView
from swarm.telemetry.records import METRICS_FILE, RoundEvent
from tests.telemetry.folders import ending_at, events, hostile, swarm as directories
from tests.telemetry.synthetic import write


def _frame(runs: list[Path], width: int = 120) -> str:
    console = Console(width=width, height=60, force_terminal=False, record=True)
    show_top(runs, True, console)
    return console.export_text()


def test_top_shows_nodes_alerts_and_what_to_do(tmp_path: Path) -> None:
    shown = _frame([directories(tmp_path, time.time() - 600)])
    assert all(name in shown for name in ("peer-1", "peer-4", "alone"))
    assert "The swarm helps: per round ×1." in shown and "in the same time ×1." in shown
    assert "No round for 10 min" in shown and "swarm health" in shown and "swarm docs operate.md" in shown


def test_lines_of_a_demo_have_the_answer_of_its_control_instead_of_estimates(tmp_path: Path) -> None:
    for control in (True, False):
        folder = directories(tmp_path / str(control), time.time(), 2, control=control)
        read = [
            PeerHistory.read(each.folder / METRICS_FILE, each.name, control=each.control)
            for each in find_nodes([folder])
        ]
        plain = Console(width=400, file=io.StringIO())
        _Watch(LiveView(read), read, plain, 30)._print_rounds(plain)
        shown = plain.file.getvalue()  # type: ignore[attr-defined]
        assert shown.count("until now | The swarm helps: per round ×1.") == control
        assert shown.count("own estimate: ") == (0 if control else 2)


def test_top_of_one_node_has_its_curves(tmp_path: Path) -> None:
    shown = _frame([directories(tmp_path, time.time(), 1, control=False)])
    for figure in ("reward", "entropy", "gradient norm", "mean lag", "seconds per round"):
        assert re.search(rf"^{figure} +[\d.e-]+ ", shown, re.MULTILINE), figure


@pytest.mark.parametrize("width", [60, 80, 200])
def test_what_strangers_say_cannot_reach_the_terminal(width: int, tmp_path: Path) -> None:
    shown = _frame([hostile(tmp_path, time.time())], width)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", shown)


def test_top_without_nodes_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no directory"):
        show_top([tmp_path / "nowhere"], True, Console())


def test_top_sees_nodes_that_start_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIND_EVERY_S", 0.0)
    frame = top.Frame(lambda: find_nodes([tmp_path]))
    console = Console(file=io.StringIO(), width=120)
    console.print(frame)
    directories(tmp_path, time.time(), 1, control=False)
    console.print(frame)
    before, after = console.file.getvalue().split("peer-1", 1)  # type: ignore[attr-defined]
    assert "entropy" not in before and re.search("^entropy +[\\d.e-]+ ", after, re.MULTILINE)


def test_top_of_a_node_that_never_had_an_update_shows_what_there_is(tmp_path: Path) -> None:
    rounds = [
        structs.replace(event, groups={**event.groups, "used_local": 0, "used_external": 0})
        if isinstance(event, RoundEvent)
        else event
        for event in events(1, 40, 0.0)
    ]
    write(tmp_path / "peer-1", ending_at(time.time(), rounds))
    shown = _frame([tmp_path])
    assert re.search(r"^reward +[\d.e-]+ ", shown, re.MULTILINE)
