"""A node of two processes under torchrun: one peer, one directory, checkpoints that any number of processes resumes."""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from swarm.training.checkpoint import CheckpointStore
from tests.nodes.processes import LOOPBACK, Swarm, command_of, gone, swarm, until

pytestmark = [pytest.mark.slow, pytest.mark.network]

OPTIONS = [
    *LOOPBACK,
    "--no-report",
    "--checkpoint.every_rounds=2",
    "--evaluation.num_questions=8",
    "--mix.fill=local",
]


def _join(out: Path, *arguments: str) -> list[str]:
    return ["join", "--out", str(out), *OPTIONS, *arguments]


def _follower(running: Swarm) -> int:
    """Process id of rank 1."""
    for process in running.tree():
        with suppress(psutil.NoSuchProcess):
            if process.environ().get("RANK") == "1" and "nodes.cli" in command_of(process):
                return process.pid
    raise AssertionError(f"there is no second rank:\n{running.text()}")


def test_two_processes_are_one_peer_and_one_goes_on_where_they_were_stopped(tmp_path: Path) -> None:
    with swarm(tmp_path, *_join(tmp_path), num_processes=2) as both:
        until(lambda: both.round() >= 3, both, "three rounds")
        assert "shared by 2 processes" in both.text()
        everything = both.tree()
        both.stop(signal.SIGINT)
        assert gone(everything)
        done = both.round()
        assert both.history().end.reason == "interrupted"
        assert CheckpointStore(tmp_path / "checkpoints").newest().name == f"round-{done:08d}"
    with swarm(tmp_path, *_join(tmp_path, "--rounds", str(done + 1))) as one:
        assert one.wait() == 0
    events = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    starts = [event for event in events if event["event"] == "start"]
    assert len({event["peer_id"] for event in starts}) == 1
    assert [event["resumed_from"] for event in starts] == [None, done]
    assert sum(event["figures"].get("train/num_sequences", 0) for event in events if event["event"] == "round") > 0


def test_the_end_of_one_process_ends_all_and_leaves_the_checkpoint_whole(tmp_path: Path) -> None:
    with swarm(tmp_path, *_join(tmp_path, "--policy.lora.rank=4"), num_processes=2) as both:
        until(lambda: both.round() >= 3, both, "a checkpoint")
        everything = both.tree()
        next(process for process in everything if process.pid == _follower(both)).kill()
        assert both.wait() != 0
        assert gone(everything)
    assert CheckpointStore(tmp_path / "checkpoints").newest()
