"""`swarm ui`, `swarm top` and the page that a node starts, as people run them."""

from __future__ import annotations

import http.client
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from nodes.page import LOG_FILE, PORT_FILE, page_of
from tests.nodes.processes import LOOPBACK, command_of, gone, swarm, until
from tests.telemetry.folders import swarm as directories


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
