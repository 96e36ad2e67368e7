"""The comparison with stopping and waiting: its worker does that, and processes get no more than their part."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from benchmarks.overlap.waiting import StopAndWait, WholeBatches
from nodes.simulation.cell import CpuShares, missing
from swarm.extras.learner.roles.worker import WorkerNode
from swarm.following import LearnerSettings
from tests.extras.learner.test_follower import Bench

SPIN = "while True: pass"


def test_a_batch_is_sent_when_it_is_over() -> None:
    bench = Bench(make=WholeBatches)
    bench.feed.offer(0)
    bench.follower.snapshots.install()
    sent: list[int] = []
    bench.engine.between = [lambda: sent.append(len(bench.exchange.sent))] * 4
    bench.follower.run_batch()
    assert sent == [0, 0, 0], "between two of four groups"
    bench.follower.send()
    assert len(bench.exchange.sent) == 4


def test_the_worker_samples_its_share_of_a_version_and_stops_until_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(make=WholeBatches)
    pauses: list[int] = []
    node = object.__new__(StopAndWait)
    # Two steps of eight rollouts are made of a version, four groups of two of them this worker's: one batch.
    settings = LearnerSettings(max_staleness=1, publish_every=2, rollouts_per_step=8)
    node.__dict__ |= {
        "_assignment": SimpleNamespace(follower=bench.follower, wait=lambda: pauses.append(len(bench.exchange.sent))),
        "_config": SimpleNamespace(learner=settings, generation=SimpleNamespace(group_size=2)),
    }
    monkeypatch.setattr(WorkerNode, "step", lambda self: self.assignment.follower.run_batch())
    for version in (0, 2):
        bench.feed.offer(version)
        for _ in range(4):
            node.step()
    assert bench.verifier.drawn == [(0, 4), (4, 4)]
    assert [group.policy.version for group in bench.exchange.sent] == [0] * 4 + [2] * 4
    assert pauses == [4] * 3 + [8] * 3


@pytest.mark.skipif(missing() is not None, reason="no control groups of processor time here")
def test_a_process_gets_its_part_of_the_processor() -> None:
    shares = CpuShares()
    child = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        shares.limit(child.pid, 0.2)
        before = psutil.Process(child.pid).cpu_times()
        began = time.monotonic()
        time.sleep(1.5)
        after, elapsed = psutil.Process(child.pid).cpu_times(), time.monotonic() - began
    finally:
        child.kill()
        child.wait()
        shares.close()
    assert after.user + after.system - before.user - before.system < 0.4 * elapsed
    assert not shares._groups, "what is limited no more leaves no group"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes in /proc")
def test_groups_of_dead_processes_are_removed_and_others_stay(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    owned = ((dead.pid, 7), (dead.pid, 8), (os.getpid(), 7))
    left_over, full, own = (tmp_path / f"swarm-bench-{owner}-{number}" for owner, number in owned)
    for group in (left_over, full, own):
        group.mkdir()
    (full / "tasks").touch()
    CpuShares(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([full, own])


def test_where_time_is_not_shared_out_the_reason_is_said(tmp_path: Path) -> None:
    reason = missing(tmp_path)
    assert reason is not None and str(tmp_path) in reason
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory\n")
    assert missing(tmp_path) is None
