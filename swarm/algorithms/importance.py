"""Weights [B, T] that correct for tokens sampled by another policy than the one that trains on them.

Tokens come from a sampler, whose log-probabilities may differ from the trainer's for the same weights (another engine,
another precision) or for older ones. A clipped objective then has two jobs in one ratio, new / behaviour. These
treatments part them: the clip is against `proximal`, the trainer's own policy when the batch was built, and the loss of
each token is multiplied by a weight made of r = proximal / behaviour, which is a constant of the batch and has no
gradient. Source: the decoupled objective of arXiv:2110.00641, as used for stale samplers in arXiv:2505.24298.

A weight above the cap is either lowered to it (truncation: bias, bounded variance) or set to 0 (masking: what the
trainer would sample so much more often than the sampler did is not learned from).
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from swarm.algorithms.names import ImportanceName


class ImportanceWeights(NamedTuple):
    """What a treatment makes of the ratios."""

    weights: Tensor
    """[B, T] in [0, cap], without gradient."""
    capped: Tensor
    """[B, T] where the cap decided."""


class Treatment(Protocol):
    """Makes weights of the ratios between the trainer's and the sampler's policy."""

    def __call__(self, proximal: Tensor, behaviour: Tensor, mask: Tensor, cap: float) -> ImportanceWeights:
        """`proximal`, `behaviour` [B, T] log-probabilities, `mask` [B, T], `cap` > 0 the largest weight."""
        ...


def none(proximal: Tensor, behaviour: Tensor, mask: Tensor, cap: float) -> ImportanceWeights:
    """1: the objective's own ratio is against the behaviour policy and is all the correction there is."""
    return ImportanceWeights(torch.ones_like(behaviour), torch.zeros_like(behaviour, dtype=torch.bool))


def token_truncate(proximal: Tensor, behaviour: Tensor, mask: Tensor, cap: float) -> ImportanceWeights:
    """min(r_t, cap), r_t = exp(proximal - behaviour) of each token.

    Source: Yao et al. 2025, "On the Rollout-Training Mismatch in Modern RL Systems" (TIS); Ionides 2008.
    """
    return _truncate(_token_log_ratios(proximal, behaviour, mask), cap)


def token_mask(proximal: Tensor, behaviour: Tensor, mask: Tensor, cap: float) -> ImportanceWeights:
    """r_t where r_t <= cap, else 0. Source: IcePop, arXiv:2510.18855, without its lower bound."""
    return _mask(_token_log_ratios(proximal, behaviour, mask), cap)


def sequence_truncate(proximal: Tensor, behaviour: Tensor, mask: Tensor, cap: float) -> ImportanceWeights:
    """min(r, cap), r = exp(sum over tokens of proximal - behaviour), the same for all tokens of a completion.

    Unbiased where the cap does not act, and of a variance that grows with the completion's length.

    Source: Ionides 2008, on whole completions.
    """
    return _truncate(_sequence_log_ratios(proximal, behaviour, mask), cap)


def sequence_mask(proximal: Tensor, behaviour: Tensor, mask: Tensor, cap: float) -> ImportanceWeights:
    """r as in `sequence_truncate` where r <= cap, else 0: such a completion is left out.

    Source: Liu et al. 2025, "When Speed Kills Stability" (MIS).
    """
    return _mask(_sequence_log_ratios(proximal, behaviour, mask), cap)


TREATMENTS: dict[ImportanceName, Treatment] = {
    "none": none,
    "token_truncate": token_truncate,
    "token_mask": token_mask,
    "sequence_truncate": sequence_truncate,
    "sequence_mask": sequence_mask,
}


def _token_log_ratios(proximal: Tensor, behaviour: Tensor, mask: Tensor) -> Tensor:
    return (proximal - behaviour).detach() * mask


def _sequence_log_ratios(proximal: Tensor, behaviour: Tensor, mask: Tensor) -> Tensor:
    total = _token_log_ratios(proximal, behaviour, mask).sum(dim=-1, keepdim=True)
    return total.expand_as(proximal)


def _truncate(log_ratios: Tensor, cap: float) -> ImportanceWeights:
    # Compared and limited before the exponential, which would overflow.
    return ImportanceWeights(log_ratios.clamp(max=math.log(cap)).exp(), log_ratios > math.log(cap))


def _mask(log_ratios: Tensor, cap: float) -> ImportanceWeights:
    weights, capped = _truncate(log_ratios, cap)
    return ImportanceWeights(weights.masked_fill(capped, 0), capped)
