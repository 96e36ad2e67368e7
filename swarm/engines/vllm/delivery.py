"""Brings changed weights to vLLM: through memory of the GPU that both are on, or else through files."""

from __future__ import annotations

import copy
import logging
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Literal

import torch
from msgspec import Struct
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor
from transformers.core_model_loading import revert_weight_conversion

from swarm.engines.config import VllmSettings
from swarm.engines.vllm.messages import Load, Packed, Piece, Request, Shared
from swarm.errors import EngineCrashed, EngineError
from swarm.policy.adapters import frozen_layers
from swarm.policy.loading import Policy
from swarm.policy.media.features import is_encoder_trained

SHARED_MEMORY = Path("/dev/shm")
WEIGHTS_FILE = "model.safetensors"
OTHER_FILES_BYTES = 2**25
"""Space for tokenizer, configuration and log, in addition to the weights."""
LAYER = re.compile(r".*?\.\d+\.")
"""Prefix of the names of a layer's weights."""
NAMES_IN_VLLM = {
    "PhimoeForCausalLM": "PhiMoEForCausalLM",
    "LightOnOcrForConditionalGeneration": "LightOnOCRForConditionalGeneration",
}
"""Models that vLLM and their published configurations spell otherwise than transformers' classes. The published
spelling itself is lost once transformers has saved a model."""

Handed = tuple[str, torch.Tensor, torch.dtype]
"""Name in the model, tensor, and its type in vLLM."""
BUFFER_BYTES = 2**28
"""Size of the buffer, unless one weight is larger: training and vLLM leave little memory."""
logger = logging.getLogger(__name__)
Ask = Callable[[Callable[[int], Request]], None]
"""Sends a request and awaits that it is done. Raises `EngineError` when it is refused, `EngineCrashed`."""


class State(Struct, frozen=True):
    """Identifies a policy's weights."""

    changes: int
    """Count of changes of the gate."""
    version: int


def state_of(policy: Policy) -> State:
    """The state of the policy's current weights."""
    return State(policy.gate.changes, policy.version)


def make_work_directory(policy: Policy) -> Path:
    """A directory readable by this user only; in memory if the weights fit there, else among the temporary files.

    Docker gives a container 64 MiB of shared memory. Raises `EngineError` when the weights fit nowhere.
    """
    needed = sum(weight.numel() * dtype.itemsize for _, weight, dtype in _base(policy))
    candidates = [path for path in (SHARED_MEMORY, Path(gettempdir())) if path.is_dir()]
    free = {path: shutil.disk_usage(path).free for path in candidates}
    for path in candidates:
        if free[path] > needed + OTHER_FILES_BYTES:
            return Path(mkdtemp(prefix="swarm-vllm-", dir=path))
    raise EngineError(_no_room(f"{needed / 2**30:.1f} GiB of weights", free))


def _no_room(what: str, free: dict[Path, int]) -> str:
    seen = ", ".join(f"{path} has {num_bytes / 2**30:.1f} GiB free" for path, num_bytes in free.items())
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
    """The weights that training changes, with the buffers; `outlined`: shapes only, on the meta device."""
    for dtype, handed in groupby(_changing(policy), lambda each: each[2]):
        values = ((name, value.detach()) for name, value, _ in handed)
        outlines = ((name, value.to("meta") if outlined else value) for name, value in values)
        yield from ((name, value, dtype) for name, value in _as_published(policy, outlines))


def _base(policy: Policy) -> Iterator[Handed]:
    """The whole model without adapters; quantized matrices are dequantized one at a time."""
    for name, parameter in policy.model.named_parameters():
        if ".lora_" not in name:
            yield name.replace(".base_layer.", "."), parameter, policy.compute_dtype
    for name, layer in frozen_layers(policy.model):
        yield f"{name.removesuffix('.base_layer')}.weight", layer.weight, policy.compute_dtype
    yield from _buffers(policy, policy.model.named_modules())


def _changing(policy: Policy) -> Iterator[Handed]:
    """All weights except a frozen encoder's. Buffers do not change, but vLLM empties a layer before it loads it again,
    and has none after a deep sleep."""
    for name, value in policy.weights.items():
        if value.requires_grad or policy.media is None:
            yield name, value, policy.compute_dtype
    modules = policy.model.named_modules()
    if policy.media is not None and not is_encoder_trained(policy.model):
        language = {id(module) for module in policy.model.get_decoder().modules()}
        modules = ((name, module) for name, module in modules if id(module) in language)
    yield from _buffers(policy, modules)


def _buffers(policy: Policy, modules: Iterable[tuple[str, torch.nn.Module]]) -> Iterator[Handed]:
    """Saved buffers in their own type: the choice of experts depends on them.

    Without `state_dict`, which would shard gathered weights again.
    """
    unsaved = policy.model._keys_to_ignore_on_save or ()
    for prefix, module in modules:
        for name, buffer in module.named_buffers(prefix, recurse=False):
            if name.rpartition(".")[2] not in module._non_persistent_buffers_set and name not in unsaved:
                yield name.replace(".base_layer.", "."), buffer, buffer.dtype


def _write(policy: Policy, directory: Path, weights: Iterable[Handed]) -> None:
    """Write weights rounded to vLLM's type, which halves what vLLM reads."""
    rounded = ((name, value.detach().to("cpu", dtype)) for name, value, dtype in weights)
    published = {name: value.contiguous() for name, value in _as_published(policy, rounded)}
    try:
        save_file(published, directory / WEIGHTS_FILE)
    except (OSError, SafetensorError) as error:
        free = {directory: shutil.disk_usage(directory).free}
        raise EngineError(f"{_no_room('weights', free)} ({error})") from error


def _as_published(policy: Policy, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Rename weights as in published files, which vLLM expects: transformers has other names, and joins experts.

    Layer by layer, because joined ones are copied.
    """
    layers: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in weights:
        found = LAYER.match(name)
        layers.setdefault(found[0] if found else "", {})[name] = value
    for prefix in list(layers):
        yield from revert_weight_conversion(policy.model, layers.pop(prefix)).items()


class GpuBuffer:
    """Memory of a GPU that another process can map."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        """Raises `RuntimeError` where driver or allocator cannot share memory, or none is left."""
        self.content = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        """[num_bytes]"""
        _, (*_, handle, size, offset, _, counter, counter_offset, event, waits) = reduce_tensor(self.content)  # type: ignore[no-untyped-call]
        gpu = str(torch.cuda.get_device_properties(device).uuid)
        self.shared = Shared(gpu, num_bytes, handle, size, offset, counter, counter_offset, event, waits)

    def flush(self) -> None:
        """Wait for all writes."""
        torch.cuda.synchronize(self.content.device)

    def close(self) -> None:
        """Free the memory after the other process has released it."""
        del self.content
        torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]


def buffer_bytes(weights: Iterable[tuple[str, Tensor, torch.dtype]]) -> int:
    """Size of a buffer for pieces of these weights, each in the given type."""
    sizes = [value.numel() * dtype.itemsize for _, value, dtype in weights]
    return max(min(sum(sizes), BUFFER_BYTES), *sizes)


def pieces(buffer: GpuBuffer, weights: Iterable[tuple[str, Tensor, torch.dtype]]) -> Iterator[Packed]:
    """Fill the buffer with as many weights of one type as it holds, in their order; each piece overwrites the last."""
    for dtype, alike in groupby(weights, lambda each: each[2]):
        room = len(buffer.content) // dtype.itemsize
        packed: dict[str, Tensor] = {}
        for name, value, _ in alike:
            if sum(each.numel() for each in packed.values()) + value.numel() > room:
                yield _filled(buffer, packed, dtype)
                packed = {}
            packed[name] = value
        yield _filled(buffer, packed, dtype)


def _filled(buffer: GpuBuffer, weights: Mapping[str, Tensor], dtype: torch.dtype) -> Packed:
    start = 0
    content = buffer.content[: len(buffer.content) // dtype.itemsize * dtype.itemsize].view(dtype)
    for value in weights.values():
        content[start : start + value.numel()].view_as(value).copy_(value)
        start += value.numel()
    buffer.flush()
    shapes = tuple(tuple(value.shape) for value in weights.values())
    return Packed(buffer.shared, tuple(weights), shapes, str(dtype).removeprefix("torch."), dtype.itemsize)


def shares_gpu(settings: VllmSettings, policy: Policy, device: torch.device) -> bool:
    """Whether weights may go through memory of a GPU; vLLM is on `device`.

    Raises `EngineError` if they must and cannot.
    """
    if settings.transfer == "files":
        return False
    if policy.adapters is not None:
        problem = "adapters go as files"
    elif settings.gpus or device.type != "cuda" or policy.device.type != "cuda":
        problem = "the policy and vLLM are not on one GPU"
    else:
        return True
    if settings.transfer == "ipc":
        raise EngineError(f"generation.vllm.transfer must be auto or files, {problem}: got ipc")
    return False


class Delivery:
    """Delivers one policy's weights."""

    def __init__(self, policy: Policy, settings: VllmSettings, work: Path, shares_gpu: bool) -> None:
        """Files go to `work`."""
        self.shares_gpu = shares_gpu
        """Whether weights go through memory of the GPU."""
        self._policy = policy
        self._settings = settings
        self._work = work

    def bring(self, ask: Ask, kv: Literal["keep", "recompute"]) -> State:
        """Install the policy's weights, and return their state.

        Raises `EngineError` when vLLM refuses them, and `EngineCrashed`, also when it has only a part of them.
        """
        if self.shares_gpu and (buffer := self._buffer()):
            with closing(buffer):
                return self._share(buffer, ask, kv)
        adapters = self._policy.adapters is not None
        with changed_files(self._policy, self._work) as (directory, state):
            ask(lambda call: Load(call, str(directory), state.version, kv == "recompute", adapters))
        return state

    def _buffer(self) -> GpuBuffer | None:
        """None if memory cannot be shared, or none is left."""
        needed = buffer_bytes(trained_weights(self._policy, outlined=True))
        try:
            return GpuBuffer(needed, self._policy.device)
        except RuntimeError as error:
            self._fall_back_to_files(error)
            return None

    def _share(self, buffer: GpuBuffer, ask: Ask, kv: str) -> State:
        policy = self._policy
        try:
            with policy.gate.use():
                state = state_of(policy)
                for piece in pieces(buffer, trained_weights(policy)):
                    ask(lambda call, piece=piece: Piece(call, piece))  # type: ignore[misc]
            ask(lambda call: Load(call, None, state.version, kv == "recompute", adapters=False))
        except EngineCrashed:
            raise
        except EngineError as error:
            self._fall_back_to_files(error)
            raise EngineCrashed("vLLM could not read weights in memory of the GPU") from error
        return state

    def _fall_back_to_files(self, reason: Exception) -> None:
        """Fall back to files, with one warning. Raises `EngineError` if the settings forbid files."""
        if self._settings.transfer == "ipc":
            raise EngineError(f"generation.vllm.transfer must be files here: {reason}") from reason
        logger.warning("weights go to vLLM through files, because memory of the GPU cannot be shared: %s", reason)
        self.shares_gpu = False
