"""`swarm ui`, `swarm top` and the page that a node starts, as people run them."""

from __future__ import annotations

import http.client
import io
import re
import signal
import time
from pathlib import Path

import psutil
import pytest
from msgspec import structs
from rich.console import Console

from nodes.commands import watching as top
from nodes.commands.watching import find_nodes, show_top
from nodes.page import LOG_FILE, PORT_FILE, page_of
from swarm.errors import ConfigError
from swarm.telemetry import nodes as module
from swarm.telemetry.records import RoundEvent
from tests.extras.page.folders import ending_at, events, hostile
from tests.extras.page.folders import swarm as directories
from tests.nodes.processes import LOOPBACK, command_of, gone, swarm, until
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


def _get(port: int) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read()
    finally:
        connection.close()


def test_the_page_of_a_node_is_a_process_that_ends_with_it(tmp_path: Path) -> None:
    said: list[str] = []
    before = set(psutil.Process().children())
    with page_of(tmp_path, None, said.append):
        (address,) = said
        port = int(address.rpartition(":")[2].strip("/"))
        assert address == f"page: http://127.0.0.1:{port}/" and b"<title>Swarm</title>" in _get(port)
        (process,) = set(psutil.Process().children()) - before
        assert process.nice() >= 10
    assert not process.is_running()
    assert (tmp_path / LOG_FILE).read_text().count("Traceback") == 0


@pytest.mark.slow
@pytest.mark.network
def test_a_node_says_where_its_page_is_and_keeps_the_port(tmp_path: Path) -> None:
    out = tmp_path / "peer"
    options = ["--out", str(out), "--ui", "--no-live", "--no-report", "--evaluation.num_questions=0", *LOOPBACK]
    ports = []
    for time_of_it in ("first", "second"):
        with swarm(tmp_path / time_of_it, "join", *options) as node:
            until(lambda node=node: "page: http" in node.text(), node, "the address")  # type: ignore[misc]
            ports.append(int(re.findall(r"page: http://127\.0\.0\.1:(\d+)/", node.text())[0]))
            assert b"<title>Swarm</title>" in _get(ports[-1])
            until(lambda: (out / "metrics.jsonl").exists(), node, "the start")
            everything = node.tree()
            assert node.stop() == 130, node.text()
            assert gone(everything)
    assert ports[0] == ports[1] == int((out / PORT_FILE).read_text())


@pytest.mark.slow
@pytest.mark.network
def test_the_page_of_a_killed_node_ends(tmp_path: Path) -> None:
    options = ["--out", str(tmp_path / "peer"), "--ui", "--no-live", *LOOPBACK]
    with swarm(tmp_path, "join", *options) as node:
        until(lambda: "page: http" in node.text(), node, "the address")
        until(lambda: any("ui" in command_of(process) for process in node.tree()), node, "the page's process")
        everything = node.tree()
        node.kill()
        assert gone(everything)


@pytest.mark.slow
def test_ui_serves_the_nodes_of_a_directory_until_ctrl_c(tmp_path: Path) -> None:
    folder = directories(tmp_path / "demo", time.time(), 2, 10)
    with swarm(tmp_path, "ui", str(folder)) as page:
        until(lambda: "page: http" in page.text(), page, "the address")
        port = int(re.findall(r":(\d+)/", page.text())[0])
        assert b"<title>Swarm</title>" in _get(port)
        page.process.send_signal(signal.SIGINT)
        assert page.wait() == 130
        assert "Traceback" not in page.text()


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
