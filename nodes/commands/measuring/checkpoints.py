"""`swarm export`, and the checkpoint that a path means."""

from __future__ import annotations

import shutil
from pathlib import Path

from rich.console import Console

from nodes.boot.directory import CHECKPOINTS
from nodes.commands.measuring.exported import trained_as
from swarm.config import NodeConfig
from swarm.errors import CheckpointError, ConfigError
from swarm.policy.adapters import is_adapter_directory
from swarm.policy.config import default_prompt, write_exported
from swarm.policy.loading import load_policy
from swarm.training.checkpoint import CONFIG, MODEL, CheckpointStore, verify, written


def export_checkpoint(path: Path, directory: Path, console: Console) -> None:
    """Write a checkpoint's policy as a complete model, with adapters merged.

    Raises `CheckpointError`, or `ConfigError` when `directory` exists.
    """
    checkpoint = find_checkpoint(path)
    if directory.exists():
        raise ConfigError(f"{directory} already exists; choose a new directory")
    config = NodeConfig.model_validate_json((checkpoint / CONFIG).read_bytes())
    trained = config.policy
    prompt = default_prompt(trained.model) if trained.system_prompt is None else trained.system_prompt
    with written("model", directory, "export elsewhere") as staging:
        if is_adapter_directory(checkpoint / MODEL):
            policy = load_policy(trained.model_copy(update={"device": "cpu", "dtype": "float32"}), checkpoint / MODEL)
            policy.merge()
            policy.save(staging)
        else:
            shutil.copytree(checkpoint / MODEL, staging)
        write_exported(staging, prompt, trained_as(config))
    console.print(f"wrote the policy of {checkpoint} to {directory}", highlight=False, soft_wrap=True)


def find_checkpoint(path: Path) -> Path:
    """The checkpoint at `path`, or the newest complete one in a peer's directory. Raises `CheckpointError`."""
    if (path / MODEL).is_dir():
        verify(path)
        return path
    for root in (path, path / CHECKPOINTS):
        if newest := CheckpointStore(root).newest():
            return newest
    raise CheckpointError(f"{path} is not a checkpoint and contains none")
