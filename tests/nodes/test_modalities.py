"""Peers that see and peers that do not, in one run: real processes, real network."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests import readers
from tests.nodes.processes import LOOPBACK, address_of, swarm, until

pytestmark = [pytest.mark.slow, pytest.mark.network]

TASKS = [{"kind": "shapes", "name": "shapes"}, {"kind": "reasoning_gym", "name": "gcd"}]
EVERYTHING = {
    "share": {"groups": "all"},
    "pool": {"min_reward_std": None},
    "mix": {"local": 2, "external": 2},
    "generation": {"max_new_tokens": 8, "group_size": 4},
}
"""Untrained policies have no signal: all groups go around."""


def test_a_peer_that_cannot_see_takes_part_in_the_tasks_of_text(tmp_path: Path) -> None:
    model = readers.directory("smolvlm", tmp_path / "model")
    founding = {"run_name": "mixed", "tasks": TASKS, "policy": {"model": str(model), "system_prompt": ""}, **EVERYTHING}
    run, blind = tmp_path / "run.yaml", tmp_path / "blind.yaml"
    run.write_text(yaml.safe_dump(founding))
    blind.write_text(yaml.safe_dump(EVERYTHING))
    quick = [*LOOPBACK, "--evaluation.num_questions=0", "--checkpoint.every_rounds=50"]
    with ExitStack() as stack:
        seeing = stack.enter_context(
            swarm(tmp_path / "seeing", "join", str(run), "--out", str(tmp_path / "seeing"), *quick)
        )
        meeting = ["--bootstrap", address_of(seeing)]
        other = stack.enter_context(
            swarm(tmp_path / "other", "join", str(blind), "--out", str(tmp_path / "other"), *quick, *meeting)
        )

        def counted(reason: str) -> int:
            return other.history().groups["dropped"].get(reason, 0)

        until(lambda: counted("cannot_perceive") > 0, other, "a group of pictures, counted by name")
        until(lambda: other.history().groups["used_external"] > 0, other, "another's group of text")
        until(lambda: seeing.history().groups["used_external"] > 0, seeing, "a group of the peer that does not see")
        assert "omitting the run's task shapes: its questions have media (image) that tiny cannot read" in other.text()
        assert counted("unknown_task") == 0
        assert "cannot_perceive" not in seeing.history().groups["dropped"]
        assert set(other.history().latest.tasks) == {"gcd"}
        assert other.stop() == 130
        assert seeing.stop() == 130


def test_tasks_of_ones_own_that_the_policy_cannot_read_are_refused(tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text(yaml.safe_dump({"tasks": TASKS}))
    with swarm(tmp_path / "peer", "join", str(run), "--out", str(tmp_path / "peer"), *LOOPBACK) as peer:
        assert peer.wait() == 2
        assert "task shapes: its questions have media (image) that tiny cannot read" in peer.text()
