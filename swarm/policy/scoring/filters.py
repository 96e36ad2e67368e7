"""Which tokens the filters of sampling leave: for engines that sample, and for checks of what they report."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from swarm.types import Sampling


def keep_likely(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits [B, V] with those of the tokens that `top_k`, `top_p` and `min_p` exclude at minus infinity."""
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest_kept = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest_kept, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = logits.softmax(dim=-1).sort(dim=-1, descending=True)
        before = ordered.cumsum(dim=-1) - ordered  # the most likely token is always kept
        dropped = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= sampling.top_p)
        logits = logits.masked_fill(dropped, -torch.inf)
    if sampling.min_p > 0:
        logits = logits.masked_fill(logits < logits.amax(dim=-1, keepdim=True) + math.log(sampling.min_p), -torch.inf)
    return logits


def keep_likely_and(tokens: Tensor, logits: Tensor, sampling: Sampling) -> Tensor:
    """As `keep_likely`, but `tokens` [B], one in each row, always stay.

    A token that was sampled at the edge of what a filter leaves may be beyond it when rounding differs.
    """
    return keep_likely(logits, sampling).scatter(-1, tokens[:, None], logits.gather(-1, tokens[:, None]))
