"""`swarm pause` and `swarm resume` on real processes, and what a paused node still does."""

from __future__ import annotations

import io
import json
import socket
import time
from pathlib import Path

import pytest
from rich.console import Console

from nodes.boot.directory import CHECKPOINTS
from nodes.commands.control import check, pause_nodes, resume_nodes, stop_nodes
from swarm.errors import ConfigError
from swarm.schedule import PAUSE_FILE, AskedPause, ask
from tests.nodes.processes import LOOPBACK, Swarm, address_of, swarm, until

OPTIONS = [*LOOPBACK, "--evaluation.num_questions=0", "--checkpoint.every_rounds=100000"]


def _said(do: object, *arguments: object) -> str:
    output = io.StringIO()
    do(*arguments, Console(file=output, width=200))  # type: ignore[operator]
    return output.getvalue()


def _pauses(peer: Swarm) -> bool:
    return peer.history().pause is not None


@pytest.mark.slow
@pytest.mark.network
def test_a_paused_node_keeps_port_checkpoint_and_peers_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "peer"
    with swarm(out, "join", "--out", str(out), *OPTIONS) as peer:
        until(lambda: peer.round() > 2, peer, "rounds")
        assert "pauses when its round is finished, until `swarm resume`" in _said(pause_nodes, [out], None, None)
        until(lambda: _pauses(peer), peer, "a pause")
        stopped_at = peer.round()
        until(lambda: "paused: asked for with `swarm pause`" in peer.text(), peer, "a line without a terminal")
        checkpoints = [path.name for path in (out / CHECKPOINTS).glob("round-*")]
        assert checkpoints == [f"round-{stopped_at:08}"], "nothing is lost if the machine is switched off"
        health = check(out, within_s=0.0, now=time.time())
        assert health.healthy and "swarm pause" in health.detail
        _, _, host, _, port, *_ = address_of(peer).split("/")
        with socket.create_connection((host, int(port)), timeout=30):
            pass  # its network still answers
        with swarm(tmp_path / "two", "join", address_of(peer), "--out", str(tmp_path / "two"), *OPTIONS) as other:
            until(lambda: other.round() > 1, other, "rounds of a peer that joins through it")
            until(lambda: (other.history().latest.peers or 0) > 0, other, "a connection")
            known = lambda: json.loads((out / "peers.json").read_text())["peers"]  # noqa: E731
            until(lambda: any(row["connected"] for row in known()), peer, "the paused node's list of peers")
        assert peer.round() == stopped_at
        assert "goes on" in _said(resume_nodes, [out])
        until(lambda: peer.round() > stopped_at + 2, peer, "rounds after the pause")
        assert not _pauses(peer)
        assert peer.history().seconds_per_round() < 5, "a pause is no time of training"
        assert peer.stop() == 130


@pytest.mark.slow
@pytest.mark.network
def test_a_node_that_starts_outside_of_its_hours_waits_for_them_and_obeys_ctrl_c(tmp_path: Path) -> None:
    out = tmp_path / "peer"
    hour = (time.localtime().tm_hour + 12) % 24
    with swarm(out, "join", "--out", str(out), *OPTIONS, f"--schedule.hours={hour:02}:00-{hour:02}:01") as peer:
        until(lambda: _pauses(peer), peer, "a pause")
        assert peer.history().pause.until > time.time()
        assert f"outside of the hours {hour:02}:00" in _said(resume_nodes, [out]), "its schedule still holds"
        asked_at = time.monotonic()
        assert peer.stop() == 130
        assert time.monotonic() - asked_at < 60
        assert peer.round() == 0


@pytest.mark.slow
@pytest.mark.network
def test_a_restart_finds_the_pause_again(tmp_path: Path) -> None:
    out = tmp_path / "peer"
    out.mkdir()
    ask(out, AskedPause())
    with swarm(out, "join", "--out", str(out), *OPTIONS, "--rounds=2") as peer:
        until(lambda: _pauses(peer), peer, "a pause")
        resume_nodes([out], Console(file=io.StringIO()))
        assert peer.wait() == 0
        assert peer.round() == 2


@pytest.mark.parametrize(
    ("lasting", "until_when", "problem"),
    [
        ("8", None, "--for must be a time such as 90m"),
        ("0h", None, "--for must be a time such as 90m"),
        (None, "25:00", "--until must be a time of the day"),
        ("8h", "18:00", "give --for or --until"),
    ],
)
def test_what_is_no_time_is_refused(tmp_path: Path, lasting: str | None, until_when: str | None, problem: str) -> None:
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match=problem):
        pause_nodes([tmp_path], lasting, until_when, Console())
    assert not (tmp_path / PAUSE_FILE).exists()


def test_a_node_that_does_not_run_will_start_paused(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    before = time.time()
    assert "will start paused, until" in _said(pause_nodes, [tmp_path], "90m", None)
    asked = json.loads((tmp_path / PAUSE_FILE).read_text())["until"]
    assert 5_400 <= asked - before < 5_460
    pause_nodes([tmp_path], None, "18:00", Console(file=io.StringIO()))
    asked = json.loads((tmp_path / PAUSE_FILE).read_text())["until"]
    assert time.localtime(asked)[3:5] == (18, 0) and 0 < asked - before <= 86_400
    said = _said(resume_nodes, [tmp_path])
    assert "is not running, and will not be paused when it starts; the command that started it" in said
    assert not (tmp_path / PAUSE_FILE).exists()
    assert "is not running; the command that started it" in _said(resume_nodes, [tmp_path])


@pytest.mark.slow
@pytest.mark.network
def test_a_node_is_stopped_and_another_experiment_does_not_go_on_from_its_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "peer"
    with swarm(out, "join", "--out", str(out), *OPTIONS) as peer:
        until(lambda: peer.round() > 0, peer, "rounds")
        assert "ended" in _said(stop_nodes, [out])
        assert peer.wait() == 130
        assert "no address was given: this node founds a run" in peer.text()
        assert peer.history().name == f"peer ({peer.history().start.peer_id[-4:]})"
    with swarm(out, "join", "--out", str(out), *OPTIONS, "--update.objective", "dapo") as other:
        assert other.wait() == 2
        assert "of another experiment; changed: update.objective grpo -> dapo" in other.text()
    with pytest.raises(ConfigError, match="no node is running in"):
        stop_nodes([out], Console(file=io.StringIO()))


def test_where_no_node_trains_there_is_nothing_to_pause(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no node that trains is there"):
        pause_nodes([tmp_path], None, None, Console())
