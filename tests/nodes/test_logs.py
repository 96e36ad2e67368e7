"""`swarm logs`: events of several nodes in order of time, the last ones first read, then followed."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
from rich.console import Console

from nodes.commands import watching as logs_module
from nodes.commands.watching import LogOptions, show_logs
from swarm.errors import ConfigError
from swarm.telemetry import nodes as arrivals_module
from swarm.telemetry.records import METRICS_FILE, EndEvent, NoteEvent, encode
from tests.nodes.processes import swarm, until
from tests.telemetry.synthetic import EPOCH, killed_and_resumed, peer_events, write


def _shown(*runs: Path, last: int = 1_000, rounds: bool = False, level: str = "info") -> list[str]:
    console = Console(width=200, record=True)
    show_logs(LogOptions(runs, last, False, rounds, level), console)
    return console.export_text().splitlines()


def test_lines_of_several_nodes_are_in_order_of_time(tmp_path: Path) -> None:
    for index in (1, 2):
        write(tmp_path / f"peer-{index}", peer_events(index))
    lines = _shown(tmp_path)
    times = [line[:19] for line in lines]
    assert times == sorted(times) and {line.split()[2] for line in lines} == {"peer-1", "peer-2"}
    assert "peer-1 started" in lines[0] and "done after round 50" in lines[-1]
    assert any("checkpoint at round 40" in line for line in lines)
    assert any(re.search(r"round 0: accuracy 0\.1\d\d on 120 held-out questions", line) for line in lines)
    assert not any("reward" in line for line in lines)


def test_only_the_last_ones_and_with_rounds(tmp_path: Path) -> None:
    write(tmp_path / "peer-1", peer_events(1))
    assert _shown(tmp_path, last=3) == _shown(tmp_path)[-3:]
    assert sum("reward 0." in line for line in _shown(tmp_path, rounds=True)) == 50


def test_levels(tmp_path: Path) -> None:
    write(tmp_path, [*killed_and_resumed(), EndEvent(time=EPOCH + 900, round=50, reason="error")])
    warnings = _shown(tmp_path, level="warning")
    assert [line.split(" ", 3)[3] for line in warnings] == [
        "warning: resumed after SIGKILL", "error: error after round 50",
    ]  # fmt: skip
    assert _shown(tmp_path, level="error") == warnings[-1:]


def test_what_strangers_say_cannot_reach_the_terminal(tmp_path: Path) -> None:
    write(tmp_path, [*peer_events(1), NoteEvent(time=EPOCH + 900, text="\x1b[2J\x07\u202eevil\r[bold]", level="odd")])
    (line,) = _shown(tmp_path, last=1)
    assert line.endswith("?[2J??evil?[bold]")


def test_without_a_node(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no directory"):
        _shown(tmp_path / "nowhere")


def test_of_a_node_that_joins_later_only_the_last_lines_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "peer-1", peer_events(1))
    polls = 0

    def poll(_: float) -> None:
        nonlocal polls
        polls += 1
        if polls == 1:
            write(tmp_path / "peer-2", peer_events(2))
        if polls == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(logs_module.time, "sleep", poll)
    monkeypatch.setattr(arrivals_module, "FIND_EVERY_S", 0.0)
    console = Console(width=200, record=True)
    show_logs(LogOptions((tmp_path,), 3, True, True, "info"), console)
    lines = console.export_text().splitlines()
    assert [line.split()[2] for line in lines] == ["peer-1"] * 3 + ["peer-2"] * 3
    assert lines[3:] == _shown(tmp_path / "peer-2", last=3, rounds=True)


@pytest.mark.slow
def test_new_lines_are_followed_until_ctrl_c(tmp_path: Path) -> None:
    path = write(tmp_path / "peer-1", peer_events(1, end=None))
    with swarm(tmp_path, "logs", str(tmp_path), "--follow", "--last", "1") as logs:
        until(lambda: "checkpoint at round 40" in logs.text(), logs, "the last line")
        with path.open("ab") as file:
            file.write(encode(NoteEvent(time=time.time(), text="something new")))
        until(lambda: "something new" in logs.text(), logs, "the new line")
        logs.process.send_signal(signal.SIGINT)
        assert logs.wait() == 0
        assert path.name == METRICS_FILE and "Traceback" not in logs.text()
