"""How many tokens a training pass may have, from what it keeps for each and what memory is free.

A pass keeps its activations until the gradient has used them, or with checkpointing each layer's input, and one layer's
activations at a time. The output head keeps the probabilities of a few chunks besides.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from swarm.policy.loading import Policy
from swarm.policy.logprobs import Scorer
from swarm.policy.out_of_memory import free_bytes
from swarm.policy.scoring.head import KEPT_CHUNKS, tokens_of_chunk
from swarm.training.config import OptimizerName
from swarm.training.memory.optimizers import MOMENT_BYTES
from swarm.training.rows import Row

PROBE_TOKENS = (16, 48)
"""Passes whose kept bytes are counted: the difference is that of their tokens alone."""
USED_FRACTION = 0.85
"""Of the free memory; the allocator's rounding needs some."""
GRADIENT_BYTES = 4
"""Per trained weight, float32 as the weight itself."""
COMPILED_SHARE = 0.7
"""At most so much of what plain layers keep is kept by compiled ones: 0.60 to 0.67 of Qwen2's, with and without
adapters."""
HEAD_CHUNKS = KEPT_CHUNKS + 3
"""Chunks of logits at the same time: those kept, and three while another is read."""
HEAD_CHUNKS_CUDA = 2
"""One, and its gradient in half precision."""


@dataclass(frozen=True)
class PassMemory:
    """Memory of one forward and backward pass."""

    fixed_bytes: int
    """Whatever its size, for example weights cast for it."""
    token_bytes: int
    head_token_bytes: int
    """Logits of a token, while there are less than `most_head_bytes`."""
    most_head_bytes: int

    def tokens_within(self, num_bytes: int) -> int:
        """The most tokens of a pass that needs at most `num_bytes`; at least 1."""
        left = num_bytes - self.fixed_bytes
        few = left // (self.token_bytes + self.head_token_bytes)
        many = (left - self.most_head_bytes) // self.token_bytes
        return max(1, few, many)


def measure(policy: Policy, scorer: Scorer, compiled: bool = False) -> tuple[PassMemory, PassMemory]:
    """The memory of this policy's passes as they are and with checkpointed layers, by counting what two small ones
    keep; their layers must be plain, even where they will be `compiled`."""
    small, large = (_kept_bytes(policy, scorer, count) for count in PROBE_TOKENS)
    activations = (large - small) // (PROBE_TOKENS[1] - PROBE_TOKENS[0])
    activations = round(activations * (COMPILED_SHARE if compiled else 1))
    config = policy.model.config.get_text_config()
    inputs = config.num_hidden_layers * config.hidden_size * torch.float32.itemsize
    logit_bytes = config.vocab_size * torch.float32.itemsize
    chunks = HEAD_CHUNKS_CUDA if policy.device.type == "cuda" else HEAD_CHUNKS
    plain = PassMemory(
        fixed_bytes=max(0, small - activations * PROBE_TOKENS[0]),
        token_bytes=activations,
        head_token_bytes=logit_bytes,
        most_head_bytes=chunks * tokens_of_chunk(policy.device.type, config.vocab_size) * logit_bytes,
    )
    return plain, replace(plain, token_bytes=inputs + activations // config.num_hidden_layers)


def bytes_for_a_pass(policy: Policy, optimizer: OptimizerName) -> int:
    """What is free on the policy's device beyond what the step itself will take."""
    each = GRADIENT_BYTES + MOMENT_BYTES[optimizer]
    pending = sum(p.numel() * each for p in policy.trained if p.grad is None)
    return int(USED_FRACTION * max(0, free_bytes(policy.device) - pending))


def _kept_bytes(policy: Policy, scorer: Scorer, num_tokens: int) -> int:
    """Bytes that a pass of one row with so many tokens keeps for the gradient."""
    prompt, completion = [policy.pad_id], [policy.pad_id] * (num_tokens - 1)
    with _counted(policy) as sizes, torch.enable_grad():
        scores = scorer([Row(prompt, completion, 0.0, None)])
        del scores
    return sum(sizes.values())


@contextmanager
def _counted(policy: Policy) -> Iterator[dict[int, int]]:
    """Sizes of the memory that is kept for the gradient within the block, by address; the model's own does not
    count."""
    own = {held.untyped_storage().data_ptr() for held in (*policy.model.parameters(), *policy.model.buffers())}
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield sizes
