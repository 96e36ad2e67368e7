"""Whether a node fits into its device's memory, and which settings would make it fit.

config.json ──▶ model.py: size ──▶ need.py: parts ──▶ verdict, and settings that fit
                settings, role, device ──▲
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from functools import cache, partial
from itertools import chain, combinations
from pathlib import Path
from typing import Literal, TypeVar

import psutil
import torch
from msgspec import Struct, structs
from pydantic import BaseModel
from transformers import PreTrainedModel

from swarm import torchao
from swarm.config import NodeConfig
from swarm.engines.choice import Vllm, choose, look_for_vllm
from swarm.errors import ConfigError, PolicyError
from swarm.policy.config import EMBEDDED, MADE_HERE, LoraSettings, PolicySettings, check_model_path
from swarm.policy.devices import find_device, find_dtype
from swarm.policy.loading import find_source
from swarm.policy.out_of_memory import free_bytes
from swarm.policy.reading import check_hub, read_config
from swarm.preflight.duties import PEER, Duties
from swarm.preflight.model import ModelSize, measure
from swarm.preflight.need import GIB, Need, Node, in_gib
from swarm.training.forward import is_checkpointed, pays

Verdict = Literal["fits", "smaller", "too large"]
"""`smaller`: with shorter passes than configured, which a node finds by running out of memory."""
Value = bool | int | float | str | tuple[int, ...]
Changes = tuple[tuple[str, Value], ...]
"""Settings by their dotted paths, and their new values."""

S = TypeVar("S", bound=BaseModel)

LORA_RANK = 16
SHARE_STEP = 0.05
"""Fractions of the GPU for vLLM are multiples of it."""
CACHE_BYTES = 2 * GIB
"""KV cache that a new fraction leaves to vLLM at least."""
ROUNDED_BASE: tuple[str, Value] = ("policy.lora.frozen_dtype", "nf4")
NUM_WAYS = 3
"""Most ways that a message names."""
MOST_CHANGES = 3
"""Settings that one way changes at most, beside the length of a pass."""


class Memory(Struct, frozen=True):
    """Memory of a device."""

    device: str
    """Its type."""
    free: int
    total: int
    swap: int = 0
    """What the CPU's processes could have beyond it, slowly."""
    other_gpus: int = 0
    """GPUs beside this one."""


class Way(Struct, frozen=True):
    """Settings with which a node fits."""

    changes: Changes
    need: Need

    def __str__(self) -> str:
        """The options on the command line, with the memory needed then."""
        options = " ".join(f"--{path} {_in_shell(value)}" for path, value in self.changes)
        return f"{options} ({in_gib(self.need.total)})"


class Preflight(Struct, frozen=True):
    """The outcome for one node."""

    model: str
    memory: Memory
    need: Need
    """The need as configured."""
    least: Need
    """One completion at a time."""
    verdict: Verdict
    problem: str = ""
    """Why it does not fit, if not for the sum."""
    ways: tuple[Way, ...] = ()

    @property
    def seen(self) -> str:
        """The figures, for people."""
        least = "" if self.verdict == "fits" else f", at least {in_gib(self.least.total)}"
        sums = (
            f"{self.model} needs about {in_gib(self.need.total)}{least}, and {in_gib(self.memory.free)} of "
            f"{self.memory.device} memory are free: {self.need}"
        )
        return f"{self.problem}; {sums}" if self.problem else sums

    @property
    def fix(self) -> str:
        """What would fit; empty where nothing is wrong."""
        if self.verdict == "fits":
            return ""
        if not self.ways:
            return "choose a smaller --model, or free memory"
        return f"what fits: {'; '.join(map(str, self.ways[:NUM_WAYS]))}"


def preflight(config: NodeConfig, duties: Duties, memory: Memory | None = None, num_processes: int = 1) -> Preflight:
    """Compare what a node needs with the memory of its device, or with `memory`.

    Raises `PolicyError`, and `ConfigError` when vLLM is configured but unavailable.
    """
    policy = config.policy
    memory = memory or memory_of(find_device(policy.device))
    revision = None if policy.model in MADE_HERE else policy.revision
    look = cache(partial(look_for_vllm, config.generation.vllm.python))
    described = read_config(find_source(policy.model), revision, policy.trust_remote_code)
    device = torch.device(memory.device)

    @cache
    def size(lora: LoraSettings) -> ModelSize:
        return measure(
            described,
            lora,
            lambda parameters: find_dtype(policy.dtype, device, lambda: parameters),
            trains_encoder=policy.encoder == "trained",
            compiled=partial(_is_compiled, config.update.compile, memory.device, num_processes),
            checkpointed=is_checkpointed(config.update.gradient_checkpointing, memory.device),
        )

    return judge(size, config, duties, memory, num_processes, look)


def _is_compiled(chosen: bool | None, device: str, num_processes: int, model: PreTrainedModel) -> bool:
    return chosen if chosen is not None else num_processes == 1 and pays(model, device)


def judge(
    size: Callable[[LoraSettings], ModelSize],
    config: NodeConfig,
    duties: Duties,
    memory: Memory,
    num_processes: int = 1,
    look: Callable[[], Vllm] = lambda: Vllm(Path(sys.executable)),
    leave: Container[Value] = (),
) -> Preflight:
    """Like `preflight`, for a model whose size is known; `look` finds vLLM.

    `leave`: settings that no way to fit may change, and values that it may not choose.
    """

    def node(changes: Changes) -> Node:
        changed = with_settings(config, changes)
        chosen = choose(changed.generation, changed.policy.model, memory.device, num_processes, look)
        engine = chosen.name if duties.asks else "transformers"
        return Node(changed, size(changed.policy.lora), duties, engine, memory.device, memory.total, num_processes)

    own = node(())
    need, problem = own.need(memory.free), _vllm_problem(own)
    verdict: Verdict = "fits" if need.total <= memory.free else "smaller"
    if problem or own.least.total > memory.free:
        verdict = "too large"
    found = Preflight(config.policy.model, memory, need, own.least, verdict, problem)
    if found.verdict == "fits":
        return found
    options = [(path, value) for path, value in _options(own, memory) if path not in leave and value not in leave]
    return structs.replace(found, ways=_ways(node, options, memory))


def check_policy(settings: PolicySettings) -> None:
    """Raises `ConfigError` or `PolicyError` for a model that cannot be had, and a device that is not there."""
    check_model_path(settings)
    find_device(settings.device)
    check_hub(settings.model, settings.revision)


def check_start(config: NodeConfig, duties: Duties, num_processes: int = 1) -> str:
    """A warning when memory is short, else empty. Raises `ConfigError` where the node clearly cannot fit."""
    if config.policy.model in EMBEDDED:
        return ""
    try:
        found = preflight(config, duties, num_processes=num_processes)
    except PolicyError:
        return ""  # loading the model says it better
    if found.verdict == "fits":
        return ""
    if found.problem or found.least.total > found.memory.free + found.memory.swap:
        raise ConfigError(f"{found.seen}; {found.fix}")
    return f"memory is short, so passes will be shorter than configured: {found.seen}; {found.fix}"


def check_nodes(config: NodeConfig, num_nodes: int, in_turn: bool = False, num_swarms: int = 1) -> None:
    """Raises `ConfigError` with the figures when this machine cannot hold so many peers of this configuration in each
    of so many swarms: every peer in a process, or a swarm's peers `in_turn` in one.

    A policy that is made here is made if it is missing.
    """
    found = preflight(config, PEER)
    free = found.memory.free

    def needed(nodes: int) -> int:
        return num_swarms * found.need.of_nodes(nodes, in_turn)

    if needed(num_nodes) <= free:
        return
    room = next((n for n in range(num_nodes - 1, 0, -1) if needed(n) <= free), 0)
    several = f"{num_swarms} swarms of " if num_swarms > 1 else ""
    shared = ", less what those of one process share" if in_turn else ""
    advice = [f"fewer --peers (there is room for {room} nodes)"] if room else []
    advice += ["fewer --jobs"] if num_swarms > 1 else []
    raise ConfigError(
        f"{several}{num_nodes} nodes with {found.model} need about {in_gib(needed(num_nodes))}, but {in_gib(free)} of "
        f"memory are free; {in_gib(found.need.total)} each{shared}: {found.need}; "
        f"choose {' or '.join([*advice, 'a smaller --model'])}"
    )


def memory_of(device: torch.device) -> Memory:
    """The memory of a device of this machine."""
    free = free_bytes(device)
    if device.type == "cuda":
        return Memory("cuda", free, torch.cuda.mem_get_info(device)[1], other_gpus=torch.cuda.device_count() - 1)
    if device.type == "mps":
        return Memory("mps", free, torch.mps.recommended_max_memory())
    return Memory(device.type, free, int(psutil.virtual_memory().total), int(psutil.swap_memory().free))


def _in_shell(value: Value) -> str:
    return f"'{list(value)}'" if isinstance(value, tuple) else str(value).lower()


def with_settings(config: NodeConfig, changes: Changes) -> NodeConfig:
    """The configuration with other values at some dotted paths."""
    for path, value in changes:
        config = _with(config, path.split("."), value)
    return config


def _with(settings: S, path: list[str], value: Value) -> S:
    name, *rest = path
    return settings.model_copy(update={name: _with(getattr(settings, name), rest, value) if rest else value})


def _vllm_problem(node: Node) -> str:
    if node.engine != "vllm" or node.device != "cuda" or node.vllm_share >= node.vllm_least:
        return ""
    fraction = node.config.generation.vllm.memory_fraction
    return (
        f"vLLM needs at least {in_gib(node.vllm_least)} for weights and one completion, but "
        f"generation.vllm.gpu_memory_fraction {fraction:g} gives it {in_gib(node.vllm_share)}"
    )


def _ways(node: Callable[[Changes], Node], options: Sequence[tuple[str, Value]], memory: Memory) -> tuple[Way, ...]:
    """Ways without shorter passes first, then by the number of changes; none that only changes more than another."""
    whole: list[Way] = []
    shorter: list[Way] = []
    for changes in chain.from_iterable(combinations(options, count) for count in range(MOST_CHANGES + 1)):
        if any(set(way.changes) <= set(changes) for way in whole):
            continue
        changed = node(changes)
        if ROUNDED_BASE in changes and not changed.config.policy.lora.rank:
            continue  # only frozen weights can be rounded
        tokens = changed.longest_pass(memory.free)
        if tokens is None or _vllm_problem(changed):
            continue
        need = changed.with_passes(tokens, 1)
        if tokens == changed.pass_tokens:
            whole.append(Way(changes, need))
        else:
            shorter.append(Way((*changes, ("update.micro_batch_tokens", tokens)), need))
    return (*whole, *shorter)


def _another_gpu(device: str) -> int:
    """One that `policy.device` does not name."""
    own = 0 if device == "auto" else torch.device(device).index or 0
    return 0 if own else 1


def _options(node: Node, memory: Memory) -> Iterator[tuple[str, Value]]:
    """Settings that need less memory, without a change of what is learned first."""
    generation, update, policy = node.config.generation, node.config.update, node.config.policy
    if node.duties.trains and not node.checkpointed:
        yield "update.gradient_checkpointing", True
    if node.duties.trains and update.optimizer == "adamw" and node.device == "cuda" and node.num_processes == 1:
        yield "update.optimizer", "adamw_offloaded"
    if node.engine == "vllm" and node.device == "cuda":
        share = math.ceil((node.vllm_least + CACHE_BYTES) / node.device_bytes / SHARE_STEP) * SHARE_STEP
        if share < 1 and not math.isclose(share, generation.vllm.memory_fraction):
            yield "generation.vllm.gpu_memory_fraction", round(share, 2)
        if node.duties.trains and not (generation.vllm.sleep or generation.max_staleness or generation.vllm.gpus):
            yield "generation.vllm.sleep", True
        if node.duties.trains and memory.other_gpus and not generation.vllm.gpus:
            yield "generation.vllm.gpus", (_another_gpu(policy.device),)
    if node.duties.trains and update.optimizer == "adamw" and torchao.is_installed():
        yield "update.optimizer", "adamw_8bit"
    if node.duties.trains and not policy.lora.rank and importlib.util.find_spec("peft"):
        yield "policy.lora.rank", LORA_RANK
    if node.duties.trains and not policy.lora.quantized and node.num_processes == 1:
        yield ROUNDED_BASE
    if node.duties.trains and node.engine == "vllm":
        yield "generation.engine", "transformers"
    if generation.max_staleness and node.duties.generates_ahead:
        yield "generation.max_staleness", 0
