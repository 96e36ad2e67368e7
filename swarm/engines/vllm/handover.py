"""A policy as files that vLLM reads: the model when it starts, weights or adapters whenever they have changed."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import torch
from msgspec import Struct
from safetensors.torch import save_file

from swarm.policy.loading import Policy

SHARED_MEMORY = Path("/dev/shm")
WEIGHTS_FILE = "model.safetensors"


class State(Struct, frozen=True):
    """Which weights a policy has."""

    changes: int
    """As its gate counts them."""
    version: int


def state_of(policy: Policy) -> State:
    """Which weights the policy has now."""
    return State(policy.gate.changes, policy.version)


def make_work_directory() -> Path:
    """For this user's eyes only, in memory where the system has a place for that."""
    return Path(mkdtemp(prefix="swarm-vllm-", dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None))


@contextmanager
def model_files(policy: Policy, work: Path) -> Iterator[tuple[Path, State]]:
    """A directory with configuration, tokenizer and weights, and which; of adapters, the weights below them.

    Only the weights are gone afterwards: vLLM has read them.
    """
    directory = work / "model"
    config = copy.deepcopy(policy.model.config)
    config.architectures = [type(policy.model).__name__]
    config.save_pretrained(directory)
    policy.tokenizer.save_pretrained(directory)
    with policy.gate.use():
        state = state_of(policy)
        _write(policy, directory, _base(policy))
    try:
        yield directory, state
    finally:
        (directory / WEIGHTS_FILE).unlink()


@contextmanager
def changed_files(policy: Policy, work: Path) -> Iterator[tuple[Path, State]]:
    """A directory with what training changes, weights or adapters, and which."""
    directory = work / "changed"
    directory.mkdir()
    try:
        with policy.gate.use():
            state = state_of(policy)
            if policy.adapters:
                policy.adapters.save(directory, policy.weights)
            else:
                _write(policy, directory, policy.weights)
        yield directory, state
    finally:
        shutil.rmtree(directory)


def _base(policy: Policy) -> dict[str, torch.Tensor]:
    """The model's parameters under the names they have without adapters."""
    return {
        name.replace(".base_layer.", "."): parameter
        for name, parameter in policy.model.named_parameters()
        if ".lora_" not in name
    }


def _write(policy: Policy, directory: Path, weights: dict[str, torch.Tensor]) -> None:
    """Rounded to what vLLM computes in: it would do the same, after reading twice as much."""
    dtype = policy.compute_dtype
    rounded = {name: value.detach().to("cpu", dtype).contiguous() for name, value in weights.items()}
    save_file(rounded, directory / WEIGHTS_FILE)
