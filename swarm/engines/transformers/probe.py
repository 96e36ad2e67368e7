"""Tests a model's code before it samples: decoding with a cache must agree with one pass over each row alone.

Some families count positions or windows from the widest row of a batch, or in another way. They would sample
from wrong distributions silently.
"""

from __future__ import annotations

import copy
import logging

import torch
from torch import Tensor

from swarm.engines.base import Stops
from swarm.engines.transformers.batch import Batch
from swarm.engines.transformers.decoder import Decoder
from swarm.engines.transformers.scheduler import BLOCK, Room, SequenceState
from swarm.errors import EngineError
from swarm.policy.loading import Policy
from swarm.policy.probing import TOLERANCE, WINDOW, small_copy
from swarm.policy.ranks import Ranks
from swarm.types import Sampling

LENGTHS = (3, 2 * WINDOW + 3)
"""Tokens of the two prompts: one shorter, one longer than the windows."""
TURNS = 2
NEW_TOKENS = 3
HALF_TOLERANCE = 0.1
"""In nats, for a model without a small copy whose passes are not in float32."""

logger = logging.getLogger(__name__)


def most_rows(policy: Policy) -> int | None:
    """Rows that the policy can decode together: any number (None), or 1 if only rows of equal length go together.

    The probe runs on a small copy. Without one it runs on the model itself, with rows that may be shorter than its
    windows. Raises `EngineError` for a model that cannot be decoded in either way.
    """
    return probed_rows(_in_small(policy))


def probed_rows(policy: Policy) -> int | None:
    """`most_rows` with the probe on the policy itself."""
    together = _trouble(policy, len(LENGTHS))
    if together is None:
        return None
    if (alone := _trouble(policy, 1)) is not None:
        raise EngineError(
            f"{policy.name} ({type(policy.model).__name__}) cannot be decoded with a cache by this engine: {alone}; "
            "set generation.engine to vllm, or choose another model"
        )
    logger.warning("%s is decoded one sequence at a time, which is slow: in a batch %s", policy.name, together)
    return 1


def _in_small(policy: Policy) -> Policy:
    """The policy with a small copy of its model, if there is one."""
    model = small_copy(type(policy.model), policy.model.config)
    if model is None:
        return policy
    small = copy.copy(policy)
    small.model, small.dtype, small.ranks, small.routers = model, torch.float32, Ranks(), None
    small.pad_id, small.stop_ids = 0, frozenset()
    return small


def _trouble(policy: Policy, num_rows: int) -> str | None:
    """The error or deviation when `num_rows` rows are decoded together; None without one."""
    try:
        decoder = Decoder(policy)
        with policy.ranks.gathered():
            off = _largest_difference(policy, decoder, num_rows)
    except Exception as error:  # whatever the code of a family raises
        return " ".join(f"{type(error).__name__}: {error}".split())
    exact = policy.compute_dtype is torch.float32
    if off <= (TOLERANCE if exact else HALF_TOLERANCE):
        return None
    return f"its log-probabilities differ by up to {off:.2g} nats from those of one pass over each sequence"


def _largest_difference(policy: Policy, decoder: Decoder, num_rows: int) -> float:
    """Between the log-probabilities of two episodes of some turns and those of passes without a cache, in nats."""
    sampling = Sampling(max_new_tokens=NEW_TOKENS)
    room = Room(num_rows, len(LENGTHS) * 2 * BLOCK)
    batch = Batch(policy, decoder, "keep", Stops(policy, sampling), sampling, room)
    batch.expect(range(len(LENGTHS)))
    ids = range(decoder.vocabulary)
    prompts = [[ids[k % len(ids)] for k in range(7 * episode, 7 * episode + n)] for episode, n in enumerate(LENGTHS)]
    differences = []
    for turn in range(TURNS):
        sequences = [
            SequenceState(len(prompts) * turn + episode, episode, prompt, seed=episode, episode=episode)
            for episode, prompt in enumerate(prompts)
        ]
        batch.add(sequences)
        while not batch.done:
            batch.step()
        differences += [_difference(policy, sequence) for sequence in sequences]
        # What follows is of unequal length, too.
        prompts = [[*sequence.prompt, *sequence.ids, *ids[: 3 + sequence.completion]] for sequence in sequences]
    return float(torch.stack(differences).max())


@torch.no_grad()
def _difference(policy: Policy, sequence: SequenceState) -> Tensor:
    ids = torch.tensor([[*sequence.prompt, *sequence.ids]], device=policy.device)
    with policy.compute():
        logits = policy.model(input_ids=ids, use_cache=False).logits[0, len(sequence.prompt) - 1 : -1].float()
    expected = torch.log_softmax(logits, dim=-1).gather(-1, ids[0, len(sequence.prompt) :, None])[:, 0]
    return (torch.tensor(sequence.logprobs) - expected.cpu()).abs().max()
