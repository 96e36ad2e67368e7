"""A learner of two processes under torchrun, and its worker: real processes, real network."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from swarm.training.checkpoint import CheckpointStore
from tests.nodes.processes import LOOPBACK, address_of, gone, swarm, until

pytestmark = [pytest.mark.slow, pytest.mark.network]

LEARNER = (
    "--learner.rollouts_per_step=16",
    "--learner.spot_check=1",
    "--update.minibatches=2",
    "--checkpoint.every_rounds=2",
    "--evaluation.num_questions=8",
    "--no-report",
    *LOOPBACK,
)
STEPS = 2


def _learn(out: Path, *arguments: str) -> list[str]:
    return ["learn", "--out", str(out), *LEARNER, *arguments]


def test_two_processes_are_one_learner_and_one_goes_on_where_they_were_stopped(tmp_path: Path) -> None:
    out = tmp_path / "learner"
    with swarm(out, *_learn(out), num_processes=2) as both:
        work = ["work", address_of(both), "--out", str(tmp_path / "worker"), "--no-report", *LOOPBACK]
        with swarm(tmp_path / "worker", *work) as worker:
            until(lambda: both.round() >= STEPS, both, "steps on a worker's rollouts")
            assert "shared by 2 processes" in both.text()
            assert "in 2 optimizer steps" in both.text()
            everything = both.tree()
            both.stop(signal.SIGINT)
            assert gone(everything)
            worker.stop()
    done = both.round()
    assert CheckpointStore(out / "checkpoints").newest().name == f"round-{done:08d}"
    (out / "multiaddrs").unlink()
    with swarm(out, *_learn(out, "--rounds", str(done + 1))) as one:
        work = ["work", address_of(one), "--out", str(tmp_path / "worker"), "--no-report", *LOOPBACK]
        with swarm(tmp_path / "worker", *work):
            assert one.wait() == 0
    events = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [event["resumed_from"] for event in events if event["event"] == "start"] == [None, done]
    steps = [event for event in events if event["event"] == "round"]
    versions = [step["learning"]["version"] for step in steps]
    assert versions == sorted(set(versions))
    assert all(step["figures"]["train/num_sequences"] > 0 for step in steps)
    refused = steps[-1]["groups"]["dropped"]
    assert not {"wrong_logprobs", "wrong_version", "wrong_tokens"} & set(refused), "snapshots are those of the trainer"
