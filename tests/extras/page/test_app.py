"""The page's server: read-only, for this machine alone, and nothing that a browser could be made to run."""

from __future__ import annotations

import json
import re
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest

from nodes.page import PORT_FILE, USUAL_PORT, address, listen
from swarm.errors import ConfigError
from swarm.extras.page.server import ASSETS, MAX_STREAMS
from tests.extras.page.served import Served, serving
from tests.telemetry.folders import DEADLINE_S, hostile, swarm, until
from tests.telemetry.synthetic import EPOCH

ATTACKS = ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "10.0.0.1", "[::1]:80")


def test_every_answer_forbids_what_is_not_the_page_s_own(tmp_path: Path) -> None:
    with serving(hostile(tmp_path, time.time())) as page:
        for path in ("/", "/page.js", "/page.css", "/samples?node=0", "/nothing", "/docs/extras/page.md", "/docs/x"):
            _, headers, _ = page.get(path)
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
            assert [rule for rule in policy.split("; ") if "data:" in rule] == ["img-src 'self' data:"]
            assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert "access-control-allow-origin" not in headers


def test_another_name_for_this_machine_is_refused(tmp_path: Path) -> None:
    with serving(swarm(tmp_path, EPOCH, 1, 5)) as page:
        for path in ("/", "/events", "/samples"):
            for host in ATTACKS:
                status, _, body = page.get(path, host)
                assert status == 400 and b"peer-1" not in body, (path, host)
        assert page.get("/", f"localhost:{page.port}")[0] == page.get("/", "127.0.0.1")[0] == 200


def test_nothing_can_be_changed(tmp_path: Path) -> None:
    folder = swarm(tmp_path, EPOCH, 1, 5)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with serving(folder) as page:
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert page.get("/samples", method=method)[0] == 405
        page.events()
        page.get("/samples")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("path", ["/../page.css", "/docs/../pyproject.toml", "/docs/%2e%2e%2fREADME.md", "/app.py"])
def test_no_other_file_is_served(path: str, tmp_path: Path) -> None:
    with serving(tmp_path) as page:
        assert page.get(path)[0] == 404


def test_documents_are_pages_with_headings_that_alerts_lead_to(tmp_path: Path) -> None:
    with serving(tmp_path) as page:
        status, headers, body = page.get("/docs/operate.md")
    assert status == 200 and headers["content-type"].startswith("text/html")
    assert b'<h2 id="when-things-fail">When things fail</h2>' in body
    assert b'href="/docs/extras/page.md"' in body, "the others are a click away"


@pytest.mark.parametrize("node", ["-1", "99", "9" * 400, "²", "x", ""])
def test_nodes_that_are_not_there(node: str, tmp_path: Path) -> None:
    with serving(swarm(tmp_path, EPOCH, 1, 5)) as page:
        page.events()
        assert page.get(f"/samples?node={quote(node)}")[0] in (200, 404)


def test_a_stream_tells_the_present_and_every_change(tmp_path: Path) -> None:
    folder = swarm(tmp_path, time.time(), 2, 20)
    with serving(folder) as page:
        (kind, overview), (other, detail) = page.events(1)
        assert (kind, other) == ("overview", "detail")
        assert json.loads(detail)["name"] == "peer-2"
        assert len(json.loads(overview)["nodes"]) == 3


def test_only_so_many_pages_at_a_time_and_closed_ones_do_not_count(tmp_path: Path) -> None:
    with serving(swarm(tmp_path, EPOCH, 1, 5)) as page:
        held = [_open(page) for _ in range(MAX_STREAMS)]
        assert all(stream.recv(12) == b"HTTP/1.1 200" for stream in held)
        assert page.get("/")[0] == 200, "what is no stream is answered"
        until(lambda: not _answers(page), "a refusal")
        for each in held:
            each.close()
        until(lambda: _answers(page), "a place for another page")


def test_pages_that_are_opened_at_once_get_no_more_places(tmp_path: Path) -> None:
    with serving(swarm(tmp_path, EPOCH, 1, 5)) as page, ExitStack() as stack:
        opened = [stack.enter_context(_open(page)) for _ in range(100)]
        answers = [stream.recv(12) for stream in opened]
        assert answers.count(b"HTTP/1.1 200") == MAX_STREAMS
        assert answers.count(b"HTTP/1.1 503") == len(opened) - MAX_STREAMS


@pytest.mark.parametrize(("count", "sent"), [(400, b""), (130, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: ")])
def test_connections_without_a_request_keep_nobody_from_the_page(count: int, sent: bytes, tmp_path: Path) -> None:
    with serving(tmp_path) as page, ExitStack() as stack:
        mute = [stack.enter_context(_connected(page, sent)) for _ in range(count)]
        began = time.monotonic()
        assert {page.get("/")[0] for _ in range(20)} == {200}
        assert all(_ends(connection) for connection in mute)
        assert time.monotonic() - began < DEADLINE_S / 4
        assert page.get("/")[0] == 200


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1\r\nX: ", b"GET /x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999\r\n\r\n"]
)
def test_a_request_byte_by_byte_has_no_more_time(first: bytes, tmp_path: Path) -> None:
    with serving(tmp_path) as page, _connected(page, first) as slow:
        until(lambda: _is_closed(slow), "its end")


def test_whoever_takes_no_answer_is_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.extras.page.server.TAKEN_WITHIN_S", 0.5)
    with serving(tmp_path) as page, _connected(page, b"") as greedy:
        greedy.setblocking(False)
        wanted = b"GET /docs/CHANGELOG.md HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 100

        def asked_in_vain() -> bool:
            try:
                greedy.send(wanted)
            except BlockingIOError:
                return False
            except OSError:
                return True
            return False

        until(asked_in_vain, "its end")
        assert page.get("/")[0] == 200


def _connected(page: Served, sent: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", page.port), timeout=DEADLINE_S)
    connection.sendall(sent)
    return connection


def _ends(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def _is_closed(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"x")
    except OSError:
        return True
    return False


def _open(page: Served) -> socket.socket:
    stream = socket.create_connection(("127.0.0.1", page.port))
    stream.sendall(f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n\r\n".encode())
    return stream


def _answers(page: Served) -> bool:
    with _open(page) as stream:
        return stream.recv(12) == b"HTTP/1.1 200"


def test_the_page_s_files_make_no_markup_of_texts_and_load_nothing_from_elsewhere() -> None:
    for path in ASSETS.iterdir():
        text = path.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text), (
            path
        )
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), path
        if path.suffix == ".html":
            assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|<style|\sstyle=", text)


def test_the_port_stays_the_same(tmp_path: Path) -> None:
    first, said = listen(tmp_path, None)
    port = first.getsockname()[1]
    assert said == "" and address(first) == f"http://127.0.0.1:{port}/"
    first.close()
    again, said = listen(tmp_path, None)
    with again:
        assert again.getsockname()[1] == port and said == ""
        other, said = listen(tmp_path, None)
        with other:
            assert f"port {port} of this page is taken" in said and other.getsockname()[1] != port
            assert int((tmp_path / PORT_FILE).read_text()) == other.getsockname()[1]


def test_a_port_that_is_asked_for_and_taken_is_an_error(tmp_path: Path) -> None:
    first, _ = listen(None, None)
    with first, pytest.raises(ConfigError, match=r"the page cannot have port \d+: address already in use"):
        listen(tmp_path, first.getsockname()[1])


@pytest.mark.parametrize("text", ["", "x", "70000", "-1", "0"])
def test_a_damaged_port_file_is_no_error(text: str, tmp_path: Path) -> None:
    (tmp_path / PORT_FILE).write_text(text)
    found, said = listen(tmp_path, None)
    with found:
        assert said == "" and (found.getsockname()[1] == USUAL_PORT or found.getsockname()[1] > 0)
