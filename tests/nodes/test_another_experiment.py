"""What is said of a directory that has a checkpoint, and which one is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from nodes.boot.directory import CHECKPOINTS, claim_directory, resumed
from swarm.config import NodeConfig, load_config
from swarm.errors import ConfigError
from swarm.telemetry.ledger import Ledger
from swarm.training.checkpoint import CONFIG, STATE, TrainingState

FIRST = [("update.learning_rate", "1e-3"), ("rounds", "5")]


def _config(out: Path, *fields: tuple[str, str]) -> NodeConfig:
    return load_config(command_line=[*FIRST, ("out", str(out)), *fields]).config


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A peer's directory with a checkpoint of round 5."""
    folder = tmp_path / CHECKPOINTS / "round-00000005"
    folder.mkdir(parents=True)
    state = TrainingState("12D3", "tiny", 5, 5, 24, [], Ledger().snapshot(), 99, role="peer")
    (folder / STATE).write_bytes(msgspec.msgpack.encode(state))
    (folder / CONFIG).write_text(_config(tmp_path).model_dump_json())
    return tmp_path


def test_a_fresh_directory_says_nothing(tmp_path: Path) -> None:
    assert resumed(_config(tmp_path), "peer", False) is None


def test_the_same_experiment_goes_on_and_says_so(out: Path) -> None:
    more = _config(out, ("rounds", "8"), ("name", "other"), ("telemetry.ui", "true"), ("network.listen", "[]"))
    assert resumed(more, "peer", False) == "resumes round 5 of this experiment"


def test_rounds_that_are_reached_are_said(out: Path) -> None:
    assert "its rounds are 5, so nothing is left to do: give more with --rounds" in str(
        resumed(_config(out), "peer", False)
    )


def test_what_changed_is_said_with_both_values(out: Path) -> None:
    changed = _config(out, ("rounds", "8"), ("update.learning_rate", "1e-2"), ("mix.local", "2"))
    assert resumed(changed, "peer", False) == (
        "resumes round 5 of an earlier experiment; changed: mix.local 4 -> 2, update.learning_rate 0.001 -> 0.01"
    )


TASKS = ("tasks", "[{name: gcd, kind: reasoning_gym}, {name: lcm, kind: reasoning_gym}]")


@pytest.mark.parametrize(
    ("fields", "role", "said"),
    [
        ([("update.objective", "dapo")], "peer", "update.objective grpo -> dapo"),
        ([TASKS], "peer", "-> gcd/lcm"),
        ([], "learner", "role peer -> learner"),
    ],
)
def test_another_experiment_is_refused_unless_it_is_meant(
    out: Path, fields: list[tuple[str, str]], role: str, said: str
) -> None:
    with pytest.raises(ConfigError, match="holds round 5 of another experiment; changed: .*--out, .*--resume") as error:
        resumed(_config(out, *fields), role, False)
    assert said in str(error.value)
    meant = _config(out, *fields, ("checkpoint.resume_changed", "true"))
    assert said in str(resumed(meant, role, False))


def test_tasks_that_the_run_changed_are_no_other_experiment_of_a_member(out: Path) -> None:
    assert "changed: tasks" in str(resumed(_config(out, TASKS), "peer", True))


def test_a_checkpoint_that_does_not_tell_its_role_is_of_any(out: Path) -> None:
    folder = out / CHECKPOINTS / "round-00000005"
    old = TrainingState("12D3", "tiny", 5, 5, 24, [], Ledger().snapshot(), 99)
    (folder / STATE).write_bytes(msgspec.msgpack.encode(old))
    assert "of this experiment" in str(resumed(_config(out), "learner", False))


def test_a_founder_without_a_chosen_directory_moves_on_and_says_so(out: Path) -> None:
    config = _config(out, ("update.objective", "dapo"))
    moved = claim_directory(config, False, role="peer")
    moved.identity.close()
    assert moved.out == out.with_name(f"{out.name}-2")
    assert moved.warnings[-1] == (
        f"{out} holds round 5 of another experiment; changed: update.objective grpo -> dapo; this one is in {moved.out}"
    )
    same = claim_directory(_config(out, ("rounds", "9")), False, role="peer")
    same.identity.close()
    assert same.out == out and not any("another experiment" in each for each in same.warnings)
