from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from nodes.boot.directory import ADDRESS_FILE, IDENTITY_FILE, LOCK_FILE, running_nodes
from nodes.cli import main
from nodes.commands.control import TAIL_BYTES, check, report_health
from swarm.errors import ConfigError
from swarm.net.records.identity import Identity
from swarm.telemetry.records import METRICS_FILE, EndEvent, Event, NoteEvent, PauseEvent, RoundEvent, StartEvent, encode

NOW = 1_800_000_000.0
START = StartEvent(time=NOW, peer_id="12D3KooW")
ROUND = RoundEvent(
    time=NOW,
    round=7,
    wall_s=1.0,
    reward=0.5,
    groups={"generated": 1, "shared": 1, "received": 0, "used_local": 1, "used_external": 0, "dropped": {}},
)


def _peer(out: Path, *events: Event, silent_s: float = 0.0) -> Path:
    metrics = out / METRICS_FILE
    metrics.write_bytes(b"".join(encode(event) for event in events))
    os.utime(metrics, (NOW - silent_s, NOW - silent_s))
    return out


def test_a_peer_whose_metrics_grow_is_healthy(tmp_path: Path) -> None:
    health = check(_peer(tmp_path, START, ROUND, silent_s=20), within_s=30, now=NOW)
    assert health.healthy
    assert health.detail == "round 7, 20 s ago"


def test_a_peer_that_has_not_finished_a_round_since_it_started_is_healthy_for_a_while(tmp_path: Path) -> None:
    out = _peer(tmp_path, ROUND, START, silent_s=20)
    assert check(out, within_s=30, now=NOW).healthy
    assert not check(out, within_s=10, now=NOW).healthy


def test_a_silent_peer_is_not_healthy(tmp_path: Path) -> None:
    health = check(_peer(tmp_path, START, ROUND, silent_s=31), within_s=30, now=NOW)
    assert not health.healthy
    assert health.detail == "silent for 31 s, more than 30 s; round 7"


def test_a_peer_that_ended_is_not_healthy_however_lately(tmp_path: Path) -> None:
    health = check(_peer(tmp_path, START, ROUND, EndEvent(time=NOW, round=7, reason="done")), within_s=30, now=NOW)
    assert not health.healthy
    assert health.detail == "ended after 7 rounds: done"


def test_a_torn_line_and_a_clock_set_back_do_not_matter(tmp_path: Path) -> None:
    out = _peer(tmp_path, START, ROUND)
    with (out / METRICS_FILE).open("ab") as file:
        file.write(encode(ROUND)[:20])
    os.utime(out / METRICS_FILE, (NOW + 3600, NOW + 3600))
    assert check(out, within_s=30, now=NOW).detail == "round 7, 0 s ago"


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    out = _peer(tmp_path, START, NoteEvent(time=NOW, text="x" * 2 * TAIL_BYTES), ROUND)
    assert check(out, within_s=30, now=NOW).detail == "round 7, 0 s ago"
    _peer(tmp_path, ROUND, NoteEvent(time=NOW, text="x" * 2 * TAIL_BYTES))
    assert check(out, within_s=30, now=NOW).healthy


def test_a_directory_without_a_node_in_it_is_not_healthy(tmp_path: Path) -> None:
    assert "starting" in check(tmp_path, within_s=30, now=NOW).detail
    assert not check(tmp_path, within_s=30, now=NOW).healthy


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_bootstrap_is_healthy_while_any_of_its_addresses_takes_connections(
    tmp_path: Path, listener: socket.socket
) -> None:
    peer_id = Identity.generate().peer_id
    port = listener.getsockname()[1]
    addresses = [f"/ip4/127.0.0.1/udp/{port}/quic/p2p/{peer_id}", f"/ip4/127.0.0.1/tcp/1/p2p/{peer_id}"]
    (tmp_path / ADDRESS_FILE).write_text("\n".join([*addresses, f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer_id}\n"]))
    assert check(tmp_path, within_s=30, now=NOW).healthy
    listener.close()
    health = check(tmp_path, within_s=30, now=NOW)
    assert not health.healthy
    assert f"/tcp/{port}/p2p/{peer_id}: connection refused" in health.detail


@pytest.mark.parametrize("written", ["", "/ip4/127.0.0.1/tcp/4", "/p2p/nobody", "/ip4/1.2.3.4/udp/4001/quic/p2p/x"])
def test_addresses_nobody_can_read_are_not_healthy(tmp_path: Path, written: str) -> None:
    (tmp_path / ADDRESS_FILE).write_text(written)
    assert not check(tmp_path, within_s=30, now=NOW).healthy


def test_running_nodes_are_those_that_hold_the_lock_of_an_identity(tmp_path: Path) -> None:
    free, held = tmp_path / "free", tmp_path / "held"
    Identity.load_or_create(free / IDENTITY_FILE).close()
    identity = Identity.load_or_create(held / IDENTITY_FILE)
    found = running_nodes()
    assert found[held] == os.getpid()
    assert free not in found
    identity.close()
    assert held not in running_nodes()
    assert (held / LOCK_FILE).exists()


def test_the_command_takes_a_directory_and_says_it_in_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(width=160)
    _peer(tmp_path, START, ROUND)
    os.utime(tmp_path / METRICS_FILE)
    assert report_health(tmp_path, 60, False, console) == 0
    assert "round 7" in capsys.readouterr().out
    _peer(tmp_path, START, ROUND)
    os.utime(tmp_path / METRICS_FILE, (1, 1))
    assert report_health(tmp_path, 60, True, console) == 1
    (told,) = json.loads(capsys.readouterr().out)
    assert told["out"] == str(tmp_path)
    assert told["healthy"] is False
    with pytest.raises(ConfigError, match="there is no directory"):
        report_health(tmp_path / "nowhere", 60, False, console)


def test_wrong_use_of_the_command_is_exit_code_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["swarm", "health", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code == 2


def test_the_check_is_light() -> None:
    heavy = ("torch", "transformers", "hivemind", "reasoning_gym", "datasets", "matplotlib")
    probe = f"import nodes.commands.control, sys; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.network
def test_a_real_bootstrap_is_healthy_until_it_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "bootstrap"
    listen = ["--network.listen", "/ip4/127.0.0.1/tcp/0", "--network.nat_port_map", "false"]
    process = subprocess.Popen(
        [sys.executable, "-m", "nodes.cli", "bootstrap", "--out", str(out), *listen],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 300
        while not (out / ADDRESS_FILE).exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert running_nodes()[out] == process.pid
        assert check(out, 60, time.time()).healthy
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 300
    while check(out, 60, time.time()).healthy and time.monotonic() < deadline:
        time.sleep(0.1)  # the daemon notices, and goes
    assert not check(out, 60, time.time()).healthy
    assert out not in running_nodes()


def test_a_paused_peer_is_healthy_whatever_is_written_meanwhile(tmp_path: Path) -> None:
    note = NoteEvent(time=NOW, text="training alone")
    out = _peer(tmp_path, START, ROUND, PauseEvent(time=NOW, why="asked"), note, silent_s=9_000)
    assert check(out, within_s=30, now=NOW).healthy
    _peer(tmp_path, START, ROUND, note, silent_s=31)
    assert check(tmp_path, within_s=30, now=NOW).detail == "silent for 31 s, more than 30 s; round 7"
