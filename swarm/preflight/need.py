"""The memory that a node needs on its device, part by part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Literal

import torch
from msgspec import Struct

from swarm.config import NodeConfig
from swarm.engines.transformers.engine import logit_copies
from swarm.errors import SwarmError
from swarm.opponents import OpponentTask
from swarm.policy.loading import find_source
from swarm.policy.media.features import MAX_FEATURE_BYTES
from swarm.policy.reading import read_config
from swarm.preflight.duties import Duties
from swarm.preflight.model import ModelSize, head_bytes, num_parameters
from swarm.training.forward import GRADIENT_BYTES, MICRO_BATCH_TOKENS, is_checkpointed
from swarm.training.optimizers import MOMENT_BYTES

When = Literal["always", "update", "generation"]

GIB = 2**30
LOGIT_BYTES = 4
PROMPT_TOKENS = 128
"""Allowed for, beside the longest completion."""
MEDIA_TOKENS = 1_024
"""Allowed for the pictures and sounds of a question."""
PROCESS = "process"
PROCESS_BYTES = {"cuda": GIB // 2, "cpu": GIB}
"""A process without its model: CUDA's context; torch and transformers, verification workers and daemon."""
VLLM_BYTES = 3 * GIB // 2
"""vLLM without weights and KV cache: context, CUDA graphs and the buffers of a step. Estimated."""


class Part(Struct, frozen=True):
    """Memory for one purpose."""

    name: str
    num_bytes: int
    when: When = "always"


class Need(Struct, frozen=True):
    """Memory on the device. Update and generation alternate: the larger one counts."""

    parts: tuple[Part, ...]
    lacking: str = ""
    """What is not included, and why."""
    assumed: str = ""
    """The passes of an update that the figures are for."""

    def during(self, when: When) -> int:
        """Bytes of the parts of one time."""
        return sum(part.num_bytes for part in self.parts if part.when == when)

    @property
    def total(self) -> int:
        """At most at any time."""
        return self.during("always") + max(self.during("update"), self.during("generation"))

    def of_nodes(self, count: int, in_turn: bool = False) -> int:
        """The need of so many such nodes; those that take turns in one process share it, and the memory of a turn."""
        if not in_turn:
            return count * self.total
        process = sum(part.num_bytes for part in self.parts if part.name == PROCESS)
        return count * (self.during("always") - process) + process + self.total - self.during("always")

    def __str__(self) -> str:
        """For people, in GiB."""
        always, update, generation = (
            ", ".join(f"{part.name} {in_gib(part.num_bytes)}" for part in self.parts if part.when == when)
            for when in ("always", "update", "generation")
        )
        turns = " or ".join(text for text in (update, generation) if text)
        lacking = f"; not included: {self.lacking}" if self.lacking else ""
        assumed = f"; assumed: {self.assumed}" if self.assumed else ""
        return f"{always}" + (f"; in turn {turns}" if turns else "") + assumed + lacking


class Node(Struct, frozen=True):
    """A node: its model, and everything else that decides how much it needs."""

    config: NodeConfig
    size: ModelSize
    duties: Duties
    engine: str
    device: str
    """Type of the device."""
    device_bytes: int
    """All memory of the device: vLLM takes a fraction of it."""
    num_processes: int = 1
    """Processes that share the policy, each with a device."""

    def need(self, free: int) -> Need:
        """With passes as long as configured, and as many sequences at a time as configured and `free` bytes allow."""
        rows = self._rows
        while rows > 1 and self.with_passes(self.pass_tokens, rows).total > free:
            rows //= 2
        return self.with_passes(self.pass_tokens, rows)

    @property
    def least(self) -> Need:
        """With one completion at a time: what a node comes down to when memory runs out."""
        return self.with_passes(self._row_tokens, 1)

    @property
    def checkpointed(self) -> bool:
        """Whether passes keep only the inputs of layers; by default with CUDA, where a node with more free memory does
        not."""
        return is_checkpointed(self.config.update.gradient_checkpointing, self.device)

    @property
    def pass_tokens(self) -> int:
        """Tokens of a forward pass, as configured."""
        return max(self.config.update.micro_batch_tokens or MICRO_BATCH_TOKENS[self.device], self._row_tokens)

    def with_passes(self, tokens: int, rows: int) -> Need:
        """With passes of so many tokens in updates, and so many sequences generated together."""
        parts = [*_held(self), *_generation(self, rows * self._row_tokens, rows)]
        if self.duties.trains:
            parts += _update(self, tokens)
        lacking = f"activations and KV cache ({self.size.problem})" if self.size.passes is None else ""
        return Need(tuple(part for part in parts if part.num_bytes), lacking, self._assumed(tokens))

    def _assumed(self, tokens: int) -> str:
        """In words; empty where nothing is trained."""
        if not self.duties.trains or self.size.passes is None:
            return ""
        kind = "checkpointed" if self.checkpointed else ("compiled" if self.size.passes.compiled else "plain")
        return f"passes of {tokens:,} tokens, {kind} layers"

    def longest_pass(self, free: int) -> int | None:
        """Tokens of a pass that fits into `free` bytes, those configured or halves of them; None if none does."""
        tokens = self.pass_tokens
        while self.with_passes(tokens, 1).total > free:
            tokens //= 2
            if tokens < self._row_tokens:
                return None
        return tokens

    @property
    def vllm_share(self) -> int:
        """Bytes of each of its GPUs that vLLM takes; other GPUs are taken to be as large as the policy's."""
        return round(self.config.generation.vllm.memory_fraction * self.device_bytes)

    @property
    def vllm_least(self) -> int:
        """Bytes of each of its GPUs with which vLLM starts: weights and one sequence."""
        passes = self.size.passes
        one = passes.cached_per_token * self._row_tokens if passes else 0.0
        return round((self.size.rounded_bytes + one) / self.config.generation.vllm.num_parts) + VLLM_BYTES

    @property
    def _row_tokens(self) -> int:
        """Longest completion with its prompt."""
        return PROMPT_TOKENS + (MEDIA_TOKENS if self.reads_media else 0) + self.config.generation.max_new_tokens

    @property
    def reads_media(self) -> bool:
        """Whether some of its questions have pictures or sounds, which its policy can read."""
        return self.size.has_encoder and any(task.media for task in self.config.tasks)

    @property
    def feature_bytes(self) -> int:
        """Features of the questions of a round, own and others'."""
        if not self.reads_media:
            return 0
        num_questions = self.config.num_questions(self.device) + self.config.mix.external
        return min(MAX_FEATURE_BYTES, num_questions * MEDIA_TOKENS * self.size.hidden * self.size.dtype.itemsize)

    @property
    def opponent_bytes(self) -> int:
        """Models that play against the policy: float32, in each process that grades, which are on the CPU."""
        if self.device != "cpu":
            return 0
        suites = self.config.evaluation.suites.values()
        tasks = [*self.config.tasks, *(task for suite in suites for task in suite.tasks)]
        paths = {task.model.path for task in tasks if isinstance(task, OpponentTask) and task.model is not None}
        return self.config.verification.workers * sum(map(_opponent_bytes, paths))

    @property
    def _rows(self) -> int:
        """Sequences that are generated together, as configured."""
        generation, evaluation = self.config.generation, self.config.evaluation
        questions = self.config.num_questions(self.device) if self.duties.trains else self.config.follow.questions
        asked = questions * generation.group_size if self.duties.asks else 0
        return max(1, min(max(asked, evaluation.num_questions), generation.max_batch_sequences))


def _held(node: Node) -> Iterator[Part]:
    """What is there all the time."""
    config, size, shards = node.config, node.size, node.num_processes
    if node.duties.trains or node.engine != "vllm" or node.device != "cuda":
        yield Part("weights", size.weight_bytes // shards)
        yield Part("a matrix of few bits, computed", size.computed_bytes)
    if node.duties.trains:
        yield Part("optimizer", _moment_bytes(node) * size.trained // shards)
    if node.duties.trains and config.update.reference_kl and not config.policy.lora.rank:
        yield Part("reference", size.weight_bytes // shards)
    if node.duties.spot_checks and config.learner.spot_check:
        yield Part("copy for spot checks", size.weight_bytes)
    if config.evaluation.beside and config.evaluation.suites:
        yield Part("copy for suites", size.weight_bytes)
    yield Part("features of media", node.feature_bytes)
    yield Part("opponents", node.opponent_bytes)
    yield Part(PROCESS, PROCESS_BYTES.get(node.device, 0))


@cache
def _opponent_bytes(path: str) -> int:
    """0 for a model that cannot be read: its task says so."""
    with suppress(SwarmError):
        return torch.float32.itemsize * num_parameters(read_config(find_source(path), None, False))
    return 0


def _moment_bytes(node: Node) -> int:
    """Bytes of the optimizer's states for every trained parameter, on the device: offloading is to the CPU's memory."""
    optimizer = node.config.update.optimizer
    return MOMENT_BYTES["adamw" if optimizer == "adamw_offloaded" and node.device == "cpu" else optimizer]


def _update(node: Node, tokens: int) -> Iterator[Part]:
    """A forward and a backward pass; the head's memory is free before a checkpointed layer is computed again."""
    size = node.size
    yield Part("gradients", GRADIENT_BYTES * size.trained // node.num_processes, "update")
    if size.passes is None:
        return
    head = head_bytes(size, tokens, node.device)
    if node.checkpointed:
        inputs = size.passes.kept_checkpointed
        # The copies of weights are free before the backward pass, in which the head takes most.
        copies = inputs.fixed if node.device == "cuda" else 0
        kept = inputs.at(tokens) + round(max(head - copies, size.passes.layer.at(tokens), 0))
    else:
        kept = size.passes.kept.at(tokens) + head
    yield Part("activations", kept, "update")


def _generation(node: Node, tokens: int, rows: int) -> Iterator[Part]:
    """`tokens` in the KV cache, for `rows` sequences."""
    size, generation = node.size, node.config.generation
    if node.engine == "vllm":
        if generation.vllm.gpus and node.duties.trains:
            return  # on other GPUs
        on_cpu = size.rounded_bytes + generation.vllm.cpu_cache_bytes + PROCESS_BYTES["cpu"]
        share = max(node.vllm_share, node.vllm_least) if node.device == "cuda" else on_cpu
        yield Part("vLLM", share, "generation" if generation.vllm.sleep else "always")
        return
    ahead = generation.max_staleness > 0 and node.duties.generates_ahead
    when: When = "always" if ahead else "generation"
    if ahead:
        yield Part("copy for generation", size.weight_bytes + PROCESS_BYTES.get(node.device, 0))
    elif node.num_processes > 1:
        yield Part("whole weights", size.weight_bytes, when)
    if size.copied_bytes and node.num_processes == 1:
        yield Part("rounded weights", size.copied_bytes)
    if size.passes is not None:
        yield Part("KV cache", round(tokens * size.passes.cached_per_token), when)
    yield Part("logits", LOGIT_BYTES * logit_copies(generation, node.device) * rows * size.vocabulary, when)


def in_gib(num_bytes: int) -> str:
    """With one decimal."""
    return f"{num_bytes / GIB:.1f} GiB"
