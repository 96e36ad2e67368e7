"""GEPO's expectation of the sampler over a whole group, from its log-probabilities alone: no torch, no model."""

from __future__ import annotations

import math
from collections.abc import Sequence

from swarm.types import Completion


def log_group_expectation(completions: Sequence[Completion]) -> float | None:
    """log of sum q^2 / sum q over all G completions, log q the mean of a completion's log-probabilities; at most 0.

    None unless every completion has a log-probability for each of its tokens: of a part of the group it would be
    another number.

    Source: arXiv:2508.17850, eq. 9 and 11.
    """
    if not completions or any(not c.logprobs or len(c.logprobs) != len(c.token_ids) for c in completions):
        return None
    log_q = [math.fsum(c.logprobs) / len(c.logprobs) for c in completions]
    return min(0.0, _log_sum_exp([2 * value for value in log_q]) - _log_sum_exp(log_q))


def _log_sum_exp(values: Sequence[float]) -> float:
    highest = max(values)
    return highest + math.log(math.fsum(math.exp(value - highest) for value in values))
