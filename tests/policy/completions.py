"""Log-probabilities of completions, teacher-forced, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from swarm.policy.batching import Insert, Padded
from swarm.policy.loading import Policy
from swarm.policy.logprobs import Scorer


class _Row(NamedTuple):
    prompt: Sequence[int]
    completion: Sequence[int]
    inserts: Sequence[Insert] = ()
    routing: None = None


def completion_logprobs(
    policy: Policy, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], temperature: float
) -> Tensor:
    """Log-probabilities [R, T] of each completion token given what precedes it; 0 beyond a completion's end."""
    rows = list(map(_Row, prompts, completions))
    return Scorer(policy, temperature, Padded(policy.mrope_positions))(rows).logprobs
