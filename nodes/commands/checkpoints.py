"""`swarm evaluate` and `swarm export`: commands on a checkpoint, without a swarm."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from nodes.roles.shell import CHECKPOINTS
from swarm.config import NodeConfig, Values, load_config
from swarm.engines.choice import choose_engine, open_engine
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import CheckpointError, ConfigError
from swarm.evaluation import Evaluation
from swarm.evaluation import evaluate as run_evaluation
from swarm.policy.adapters import is_adapter_directory
from swarm.policy.loading import load_policy
from swarm.telemetry.intervals import wilson_interval
from swarm.training.checkpoint import CONFIG, MODEL, CheckpointStore, verify


def evaluate_checkpoint(
    path: Path,
    file: Path | None,
    overrides: Sequence[tuple[str, str]],
    num_questions: int,
    as_json: bool,
    console: Console,
) -> None:
    """Print the accuracy per task. Raises `CheckpointError` or `ConfigError`."""
    weights, saved = _find_weights(path)
    config = load_config(file, None if file else saved, os.environ, overrides).config
    policy = load_policy(config.policy, weights)
    choice = choose_engine(config.generation, policy)
    engine = open_engine(choice, policy, config.policy, config.generation)
    verifier = VerificationPool(config.tasks, config.verification)
    try:
        with console.status(f"asking {num_questions} held-out questions"):
            sampling, stream = config.generation.sampling(), config.evaluation.stream
            result = run_evaluation(engine, verifier, sampling, num_questions, stream)
    finally:
        verifier.close()
        engine.close()
    if as_json:
        print(json.dumps({"weights": str(weights), **_as_dict(result)}, indent=1))
    else:
        console.print(choice, highlight=False)
        console.print(_as_table(result))


def export_checkpoint(path: Path, directory: Path, console: Console) -> None:
    """Write a checkpoint's policy as a complete model, with adapters merged.

    Raises `CheckpointError`, or `ConfigError` when `directory` exists.
    """
    checkpoint = find_checkpoint(path)
    if directory.exists():
        raise ConfigError(f"{directory} already exists; choose a new directory")
    if is_adapter_directory(checkpoint / MODEL):
        trained = NodeConfig.model_validate_json((checkpoint / CONFIG).read_bytes()).policy
        policy = load_policy(trained.model_copy(update={"device": "cpu", "dtype": "float32"}), checkpoint / MODEL)
        policy.merge()
        policy.save(directory)
    else:
        shutil.copytree(checkpoint / MODEL, directory)
    console.print(f"wrote the policy of {checkpoint} to {directory}", highlight=False, soft_wrap=True)


def _find_weights(path: Path) -> tuple[Path, Values]:
    """A model directory and its training configuration, which is unknown for a bare model."""
    if (path / "config.json").is_file() and not (path / MODEL).is_dir():
        return path, {"policy": {"model": str(path)}}
    checkpoint = find_checkpoint(path)
    return checkpoint / MODEL, json.loads((checkpoint / CONFIG).read_text())


def find_checkpoint(path: Path) -> Path:
    """The checkpoint at `path`, or the newest complete one in a peer's directory. Raises `CheckpointError`."""
    if (path / MODEL).is_dir():
        verify(path)
        return path
    for root in (path, path / CHECKPOINTS):
        if newest := CheckpointStore(root).newest():
            return newest
    raise CheckpointError(f"{path} is not a checkpoint and contains none")


def _rows(result: Evaluation) -> list[tuple[str, int, int]]:
    rows = [(task, correct, asked) for task, (correct, asked) in result.tasks.items()]
    return [*rows, ("all", result.num_correct, result.num_questions)]


def _as_dict(result: Evaluation) -> dict[str, object]:
    return {
        task: {
            "correct": correct,
            "asked": asked,
            "accuracy": correct / asked,
            "interval": wilson_interval(correct, asked),
        }
        for task, correct, asked in _rows(result)
    }


def _as_table(result: Evaluation) -> Table:
    table = Table("task", "accuracy", "95% interval", "correct", "asked", box=None, pad_edge=False)
    for task, correct, asked in _rows(result):
        low, high = wilson_interval(correct, asked)
        accuracy = f"{correct / asked:.3f}" if asked else "-"
        table.add_row(task, accuracy, f"{low:.3f} - {high:.3f}", str(correct), str(asked))
    return table
