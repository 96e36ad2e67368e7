"""Writes a policy to files for vLLM: the model at its start, adapters or weights whenever they change.

Weights on the GPU that vLLM is on need no files: see `transfer.py`.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir, mkdtemp

import torch
from msgspec import Struct
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers.core_model_loading import revert_weight_conversion

from swarm.errors import EngineError
from swarm.policy.frozen.layers import frozen_layers
from swarm.policy.loading import Policy

SHARED_MEMORY = Path("/dev/shm")
WEIGHTS_FILE = "model.safetensors"
OTHER_FILES_BYTES = 2**25
"""Room beside the weights for the tokenizer, the configuration and the process's log."""


class State(Struct, frozen=True):
    """Identifies a policy's weights."""

    changes: int
    """Count of changes of the gate."""
    version: int


def state_of(policy: Policy) -> State:
    """The state of the policy's current weights."""
    return State(policy.gate.changes, policy.version)


def make_work_directory(policy: Policy) -> Path:
    """Readable by this user only; in memory where the weights have room there, else among the temporary files.

    Docker gives a container 64 MiB of shared memory. Raises `EngineError` when there is no room anywhere.
    """
    needed = sum(weight.numel() for _, weight in _base(policy)) * policy.compute_dtype.itemsize
    places = [place for place in (SHARED_MEMORY, Path(gettempdir())) if place.is_dir()]
    free = {place: shutil.disk_usage(place).free for place in places}
    for place in places:
        if free[place] > needed + OTHER_FILES_BYTES:
            return Path(mkdtemp(prefix="swarm-vllm-", dir=place))
    raise EngineError(_no_room(f"{needed / 2**30:.1f} GiB of weights", free))


def _no_room(what: str, free: dict[Path, int]) -> str:
    seen = ", ".join(f"{place} has {num_bytes / 2**30:.1f} GiB free" for place, num_bytes in free.items())
    return (
        f"no room for {what} on their way to vLLM: {seen}; give a container more shared memory (--shm-size, or "
        "shm_size in docker-compose.yml), or set TMPDIR to a directory with room"
    )


@contextmanager
def model_files(policy: Policy, work: Path) -> Iterator[tuple[Path, State]]:
    """Yield a directory with configuration, tokenizer and weights, and their state; with adapters, the base weights.

    The weights are removed afterwards, because vLLM has read them.
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
    """Yield a directory with the trained weights or adapters, and their state."""
    directory = work / "changed"
    directory.mkdir()
    try:
        with policy.gate.use():
            state = state_of(policy)
            if policy.adapters:
                policy.adapters.save(directory, policy.weights)
            else:
                _write(policy, directory, _changing(policy))
        yield directory, state
    finally:
        shutil.rmtree(directory)


def trained_weights(policy: Policy) -> dict[str, torch.Tensor]:
    """The weights that training changes, by the names that vLLM reads, as they are."""
    return _as_published(policy, {name: value.detach() for name, value in _changing(policy)})


def _base(policy: Policy) -> Iterator[tuple[str, torch.Tensor]]:
    """The model's parameters by their names without adapters; matrices of few bits are computed one after the other."""
    for name, parameter in policy.model.named_parameters():
        if ".lora_" not in name:
            yield name.replace(".base_layer.", "."), parameter
    for name, layer in frozen_layers(policy.model):
        yield f"{name.removesuffix('.base_layer')}.weight", layer.weight


def _changing(policy: Policy) -> Iterator[tuple[str, torch.Tensor]]:
    """All weights but those of an encoder, which stay as they are."""
    for name, value in policy.weights.items():
        if value.requires_grad or policy.media is None:
            yield name, value


def _write(policy: Policy, directory: Path, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Rounded to vLLM's type, as vLLM would do itself after reading twice as much."""
    dtype = policy.compute_dtype
    rounded = {name: value.detach().to("cpu", dtype).contiguous() for name, value in weights}
    try:
        save_file(_as_published(policy, rounded), directory / WEIGHTS_FILE)
    except (OSError, SafetensorError) as error:
        free = {directory: shutil.disk_usage(directory).free}
        raise EngineError(f"{_no_room('weights', free)} ({error})") from error


def _as_published(policy: Policy, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """By their names in published files, which vLLM knows: transformers has others for some families that see."""
    return weights if policy.media is None else revert_weight_conversion(policy.model, weights)
