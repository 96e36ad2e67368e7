"""The demo as people run it: real processes, real network."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.nodes.processes import balanced, gone, is_daemon, summary, swarm, until, writes_to

pytestmark = [pytest.mark.slow, pytest.mark.network]


@pytest.fixture
def short_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that do not look at what was learned: a demo's 360 questions take longer than a few rounds."""
    monkeypatch.setenv("SWARM_EVALUATION__NUM_QUESTIONS", "9")


def _peer_round(out: Path) -> int:
    metrics = out / "metrics.jsonl"
    return metrics.read_text().count('"event":"round"') if metrics.exists() else 0


def test_a_killed_peer_comes_back_and_everyone_learns_from_others(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    with swarm(tmp_path, "demo", "--peers", "3", "--rounds", "40", "--out", str(out), "--no-live") as demo:
        until(lambda: (out / "peer-2" / "checkpoints" / "round-00000025").is_dir(), demo, "a checkpoint")
        victim = next(p for p in demo.tree() if writes_to(p, out / "peer-2" / "log.txt"))
        victim.send_signal(signal.SIGKILL)
        until(lambda: "restarted" in demo.text(), demo, "restart")
        everything = demo.tree()
        assert demo.wait() == 0, demo.text()
        assert gone(everything)
    result = summary(out)
    peers = {peer["name"]: peer for peer in result["peers"]}
    assert sorted(peers) == ["peer-1", "peer-2", "peer-3"]
    assert all(peer["rounds"] == 40 for peer in peers.values())
    assert all(peer["groups"]["used_external"] > 0 for peer in peers.values())
    assert all(balanced(peer) for peer in peers.values()), peers
    assert peers["peer-2"]["restarts"] == 1
    assert len({peer["peer_id"] for peer in peers.values()}) == 3
    assert result["mean_reward_last"] > result["mean_reward_first"]
    assert result["mean_eval_after"] > result["mean_eval_before"]
    control = result["control"]
    assert control["name"] == "alone" and control["rounds"] == 40 and balanced(control)
    assert control["groups"]["received"] == control["groups"]["used_external"] == 0 < control["groups"]["used_local"]
    assert result["help"]["low"] <= result["help"]["cumulative_ratio"] <= result["help"]["high"]
    assert result["help"]["rounds"] == 40 and "in the same time" in demo.text()
    assert result["help"]["seconds_together"] > 0 and result["help"]["processor_s_alone"] > 0
    assert "peer-2 died (exit code -9)" in demo.text()
    assert '"control accuracy":[[' in (out / "report.html").read_text()


@pytest.mark.usefixtures("short_evaluations")
def test_ctrl_c_stops_everything_soon_and_reports(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    began = time.monotonic()
    with swarm(tmp_path, "demo", "--peers", "2", "--rounds", "5000", "--out", str(out), "--no-live") as demo:
        until(lambda: all(_peer_round(out / name) > 0 for name in ("peer-1", "peer-2", "alone")), demo, "rounds")
        everything = demo.tree()
        assert any(map(is_daemon, everything))
        started_s = time.monotonic() - began
        demo.process.send_signal(signal.SIGINT)
        others = [p for p in everything if p.pid != demo.process.pid]
        assert gone(others, max(5.0, started_s)), "within seconds, or what this machine takes to start them"
        assert demo.wait() == 130
    result = summary(out)
    for k, peer in enumerate(sorted(result["peers"], key=lambda peer: peer["name"]), 1):
        assert peer["state"] == "interrupted"
        newest = sorted((out / f"peer-{k}" / "checkpoints").iterdir())[-1].name
        assert newest == f"round-{peer['rounds']:08d}", "the checkpoint is of the last round"
    assert "report.html" in demo.text()


@pytest.mark.usefixtures("short_evaluations")
def test_a_killed_demo_leaves_no_process_behind(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    with swarm(tmp_path, "demo", "--peers", "1", "--rounds", "5000", "--out", str(out), "--no-live") as demo:
        until(lambda: _peer_round(out / "peer-1") > 0, demo, "a round")
        everything = demo.tree()
        demo.kill()
        assert gone(everything)


@pytest.mark.usefixtures("short_evaluations")
def test_in_memory_the_same_seed_gives_the_same_curves(tmp_path: Path) -> None:
    rewards = []
    for name in ("one", "two"):
        out = tmp_path / name
        arguments = ["--peers", "2", "--rounds", "8", "--seed", "3", "--transport", "memory", "--no-live"]
        with swarm(tmp_path / f"{name}-run", "demo", "--out", str(out), *arguments) as demo:
            assert demo.wait() == 0, demo.text()
        lines = (out / "peer-1" / "metrics.jsonl").read_text().splitlines()
        rounds = [event for event in map(json.loads, lines) if event["event"] == "round"]
        assert len(rounds) == 8 and rounds[-1]["groups"]["used_external"] > 0
        for event in rounds:
            assert event["figures"].pop("worth/cost_s") >= 0, "the only figure of time"
        rewards.append([(event["reward"], event["figures"]) for event in rounds])
    assert rewards[0] == rewards[1]


@pytest.mark.usefixtures("short_evaluations")
def test_a_learner_teaches_workers_that_end_with_it(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    arguments = ["--mode", "learner", "--peers", "3", "--rounds", "8", "--out", str(out), "--no-live"]
    with swarm(tmp_path, "demo", *arguments) as demo:
        workers = ["worker-1", "worker-2"]
        until(lambda: any(_peer_round(out / name) > 0 for name in workers), demo, "a batch")
        working = max(workers, key=lambda name: _peer_round(out / name))
        (other,) = set(workers) - {working}
        next(p for p in demo.tree() if writes_to(p, out / other / "log.txt")).send_signal(signal.SIGKILL)
        everything = demo.tree()
        assert demo.wait() == 0, demo.text()
        assert gone(everything)
    peers = {peer["name"]: peer for peer in summary(out)["peers"]}
    assert sorted(peers) == ["learner", "worker-1", "worker-2"]
    assert peers["learner"]["rounds"] == 8 and balanced(peers["learner"])
    assert peers["learner"]["groups"]["used_external"] >= 64
    assert peers["learner"]["state"] == peers[working]["state"] == "done", "it heard that the learner has finished"
    steps = [json.loads(line) for line in (out / "learner" / "metrics.jsonl").read_text().splitlines()]
    steps = [event for event in steps if event["event"] == "round"]
    assert all(event["figures"].get("sampling/lag_max", 0) <= event["learning"]["max_staleness"] for event in steps)
    assert '"weights":[[' in (out / "report.html").read_text()
