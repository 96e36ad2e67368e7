"""The sampler's expectation and variance over a whole group, from its log-probabilities alone: no torch, no model."""

from __future__ import annotations

import math
from collections.abc import Sequence

from swarm.types import Completion


def log_group_expectation(completions: Sequence[Completion]) -> float | None:
    """`log_expectation` of all G completions; None unless every token has a log-probability."""
    if not completions or any(not c.logprobs or len(c.logprobs) != len(c.token_ids) for c in completions):
        return None
    return log_expectation([mean_logprob(c.logprobs) for c in completions])


def mean_logprob(logprobs: Sequence[float]) -> float:
    """Mean of one completion's log-probabilities; NaN for none. Divides before it sums, so that the sum stays
    finite."""
    return math.fsum(value / len(logprobs) for value in logprobs) if logprobs else math.nan


def log_expectation(log_q: Sequence[float]) -> float:
    """log of sum q^2 / sum q, `log_q` [G] the mean log-probability of each completion's tokens; at most 0.

    Source: arXiv:2508.17850, eq. 9 and 11.
    """
    value = _log_sum_exp([2 * value for value in log_q]) - _log_sum_exp(log_q)
    return 0.0 if value > 0 else value  # rounding; NaN stays


def variance(log_q: Sequence[float]) -> float:
    """sum q (q - E)^2 / sum q, E = sum q^2 / sum q, `log_q` [G] as above: in [0, 1/4].

    NaN if one of them is NaN. Source: the weights of arXiv:2508.17850, eq. 11, for its Var(q) in section 3.3.
    """
    total = _log_sum_exp(log_q)
    weights = [math.exp(value - total) for value in log_q]
    mean = math.fsum(weight * math.exp(value) for weight, value in zip(weights, log_q, strict=True))
    spread = math.fsum(weight * (math.exp(value) - mean) ** 2 for weight, value in zip(weights, log_q, strict=True))
    return min(spread, 0.25)  # rounding


def _log_sum_exp(values: Sequence[float]) -> float:
    highest = max(values)
    return highest + math.log(math.fsum(math.exp(value - highest) for value in values))
