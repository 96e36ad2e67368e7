"""Writes a policy to files for vLLM: the model at its start, adapters or weights whenever they change.

Weights on the GPU that vLLM is on need no files: see `transfer.py`.
"""

from __future__ import annotations

import copy
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from tempfile import gettempdir, mkdtemp

import torch
from msgspec import Struct
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers.core_model_loading import revert_weight_conversion

from swarm.errors import EngineError
from swarm.policy.adapters import frozen_layers
from swarm.policy.loading import Policy
from swarm.policy.media.features import is_encoder_trained

SHARED_MEMORY = Path("/dev/shm")
WEIGHTS_FILE = "model.safetensors"
OTHER_FILES_BYTES = 2**25
"""Room beside the weights for the tokenizer, the configuration and the process's log."""
LAYER = re.compile(r".*?\.\d+\.")
"""Begins the names of a layer's weights."""
NAMES_IN_VLLM = {
    "PhimoeForCausalLM": "PhiMoEForCausalLM",
    "LightOnOcrForConditionalGeneration": "LightOnOCRForConditionalGeneration",
}
"""Models that vLLM and their published configurations spell otherwise than transformers' classes. The published
spelling itself is lost once transformers has saved a model."""

Handed = tuple[str, torch.Tensor, torch.dtype]
"""A tensor by its name in the model, and the type in which vLLM gets it."""


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
    needed = sum(weight.numel() * dtype.itemsize for _, weight, dtype in _base(policy))
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
    name = type(policy.model).__name__
    config.architectures = [NAMES_IN_VLLM.get(name, name)]
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


def trained_weights(policy: Policy, outlined: bool = False) -> Iterator[Handed]:
    """The weights that training changes and the buffers beside them, as they are; `outlined`: without content."""
    for dtype, handed in groupby(_changing(policy), lambda each: each[2]):
        values = ((name, value.detach()) for name, value, _ in handed)
        outlines = ((name, value.to("meta") if outlined else value) for name, value in values)
        yield from ((name, value, dtype) for name, value in _as_published(policy, outlines))


def _base(policy: Policy) -> Iterator[Handed]:
    """All of the model without adapters; matrices of few bits are computed one after the other."""
    for name, parameter in policy.model.named_parameters():
        if ".lora_" not in name:
            yield name.replace(".base_layer.", "."), parameter, policy.compute_dtype
    for name, layer in frozen_layers(policy.model):
        yield f"{name.removesuffix('.base_layer')}.weight", layer.weight, policy.compute_dtype
    yield from _buffers(policy, policy.model.named_modules())


def _changing(policy: Policy) -> Iterator[Handed]:
    """All weights but those of an encoder that stay as they are. Buffers do not change, but vLLM empties a layer before
    it loads it again, and has none after a deep sleep."""
    for name, value in policy.weights.items():
        if value.requires_grad or policy.media is None:
            yield name, value, policy.compute_dtype
    modules = policy.model.named_modules()
    if policy.media is not None and not is_encoder_trained(policy.model):
        language = {id(module) for module in policy.model.get_decoder().modules()}
        modules = ((name, module) for name, module in modules if id(module) in language)
    yield from _buffers(policy, modules)


def _buffers(policy: Policy, modules: Iterable[tuple[str, torch.nn.Module]]) -> Iterator[Handed]:
    """What files hold beside parameters, in its own type, as it is in files: choices of experts hang on it.

    Without `state_dict`, which would shard gathered weights again.
    """
    unsaved = policy.model._keys_to_ignore_on_save or ()
    for prefix, module in modules:
        for name, buffer in module.named_buffers(prefix, recurse=False):
            if name.rpartition(".")[2] not in module._non_persistent_buffers_set and name not in unsaved:
                yield name.replace(".base_layer.", "."), buffer, buffer.dtype


def _write(policy: Policy, directory: Path, weights: Iterable[Handed]) -> None:
    """Rounded to vLLM's type, as vLLM would do itself after reading twice as much."""
    rounded = ((name, value.detach().to("cpu", dtype)) for name, value, dtype in weights)
    published = {name: value.contiguous() for name, value in _as_published(policy, rounded)}
    try:
        save_file(published, directory / WEIGHTS_FILE)
    except (OSError, SafetensorError) as error:
        free = {directory: shutil.disk_usage(directory).free}
        raise EngineError(f"{_no_room('weights', free)} ({error})") from error


def _as_published(policy: Policy, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """By their names in published files, which vLLM knows: transformers has others, and joins experts.

    Layer by layer, because joined ones are copied.
    """
    layers: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in weights:
        found = LAYER.match(name)
        layers.setdefault(found[0] if found else "", {})[name] = value
    for prefix in list(layers):
        yield from revert_weight_conversion(policy.model, layers.pop(prefix)).items()
