"""Whether the nodes of a demo fit into this machine's memory: refused beforehand, with the figures, if they do not."""

from __future__ import annotations

import torch
from msgspec import Struct
from transformers import PreTrainedModel

from swarm.config import NodeConfig
from swarm.engines.transformers.budget import LOGIT_COPIES, free_bytes
from swarm.errors import ConfigError
from swarm.policy.loading import find_device, find_source
from swarm.policy.reading import outline
from swarm.training.passes import MICRO_BATCH_TOKENS

FLOAT_BYTES = 4
MOMENTS = 2
"""Of AdamW, one number each for every parameter."""
PROMPT_TOKENS = 128
"""Allowed for in the KV cache, beside the longest completion."""
HIDDEN_KEPT, INTERMEDIATE_KEPT = 10, 4
"""Vectors of each width that a layer keeps of a token for the gradient: inputs of norms and products, queries, keys and
values before and after their rotation; gate, its activation, and the product with the up-projection."""
PROCESS_BYTES = 2**30
"""A node without its model: torch and transformers, the verification workers, the network daemon."""
GIB = 2**30


class Footprint(Struct, frozen=True):
    """Memory of one node by what it is for, in bytes. Generation and update alternate: the larger one counts."""

    weights: int
    optimizer: int
    processes: int
    generation: int
    """KV cache and logits."""
    update: int
    """Gradients and the activations of a micro-batch."""

    @property
    def total(self) -> int:
        """At most at any time."""
        return self.weights + self.optimizer + self.processes + max(self.generation, self.update)

    def __str__(self) -> str:
        """For people, in GiB."""
        return (
            f"weights {in_gib(self.weights)}, optimizer {in_gib(self.optimizer)}, processes {in_gib(self.processes)}, "
            f"and in turn KV cache {in_gib(self.generation)} or gradients and activations {in_gib(self.update)}"
        )


def check_memory(config: NodeConfig, num_nodes: int) -> None:
    """Raises `ConfigError` with the figures when this machine cannot hold so many nodes of this configuration.

    A policy that is made here is made if it is missing.
    """
    policy = config.policy
    device = find_device(policy.device)
    model = outline(find_source(policy.model), policy.revision, False)
    check_fits(policy.model, footprint(model, config, device), num_nodes, free_bytes(device))


def footprint(model: PreTrainedModel, config: NodeConfig, device: torch.device) -> Footprint:
    """An estimate for a node that trains all weights of `model`, which may be on the device `meta`, in float32."""
    num_bytes = FLOAT_BYTES * model.num_parameters()
    shape = model.config.get_text_config()
    generation = config.generation
    asked = max(generation.questions_per_round * generation.group_size, config.evaluation.num_questions)
    rows = min(asked, generation.max_batch_sequences)
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    head_dim = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    keys_and_values = 2 * shape.num_hidden_layers * heads * head_dim
    cached = rows * (PROMPT_TOKENS + generation.max_new_tokens) * keys_and_values
    logits = LOGIT_COPIES * rows * shape.vocab_size
    intermediate = getattr(shape, "intermediate_size", None) or 4 * shape.hidden_size
    kept = shape.num_hidden_layers * (HIDDEN_KEPT * shape.hidden_size + INTERMEDIATE_KEPT * intermediate)
    tokens = config.update.micro_batch_tokens or MICRO_BATCH_TOKENS[device.type]
    return Footprint(
        weights=num_bytes,
        optimizer=MOMENTS * num_bytes,
        processes=PROCESS_BYTES,
        generation=FLOAT_BYTES * (cached + logits),
        update=num_bytes + FLOAT_BYTES * tokens * kept,
    )


def check_fits(name: str, one: Footprint, num_nodes: int, free_bytes: int) -> None:
    """Raises `ConfigError` with the figures when `num_nodes` nodes of this size need more than `free_bytes`."""
    if num_nodes * one.total <= free_bytes:
        return
    room = free_bytes // one.total
    advice = f"choose fewer --peers (there is room for {room} nodes) or a smaller --model"
    raise ConfigError(
        f"{num_nodes} nodes with {name} need about {in_gib(num_nodes * one.total)}, but {in_gib(free_bytes)} of memory "
        f"are free; {in_gib(one.total)} each: {one}; {advice if room else 'choose a smaller --model'}"
    )


def in_gib(num_bytes: int) -> str:
    """With one decimal."""
    return f"{num_bytes / GIB:.1f} GiB"
