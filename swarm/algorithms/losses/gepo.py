"""GEPO: importance weights against the expectation of the behaviour policy over the group."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from swarm.algorithms.losses.base import (
    Groups,
    LossConfig,
    LossOutput,
    clipped_surrogate,
    per_token,
    sequence_shares,
    token_means,
)


def gepo(
    new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, config: LossConfig, groups: Groups | None = None
) -> LossOutput:
    """Mean over sequences of -w A, w = p / (eps p.detach() + (1 - eps) E), all in log space.

    p, q are length-normalised: log p = mean over tokens of `new`. E = sum q^2 / sum q over one group, from the record
    where it carries it, else from the group's rows in this batch: those must then be the whole group. Weights are not 1
    at p = q; at eps = 1 the gradient is that of A log p. `group_clip` makes it -min(w A, clip(w) A), as does the code
    published for the paper.

    Denominator: B. A row without unmasked tokens contributes 0. Raises `ValueError` without groups.

    Source: arXiv:2508.17850, eq. 9, 11, 12 and 15.
    """
    if groups is None:
        raise ValueError("gepo needs to know which rows form a group, got none")
    log_p, log_q = token_means(new, mask), token_means(old, mask)  # [B]
    expectation = log_group_expectation(log_q, groups.ids)
    if groups.log_expectation is not None:
        carried = groups.log_expectation
        expectation = torch.where(carried.isnan(), expectation, carried)
    weight = torch.exp(log_p - _log_denominator(log_p.detach(), expectation.detach(), config.group_epsilon))
    present = mask.sum(dim=-1) > 0
    outside = (weight < 1 - config.clip_low) | (weight > 1 + config.clip_high)
    if config.group_clip:
        losses, clipped = clipped_surrogate(weight[:, None], advantages, config)
    else:
        losses, clipped = -weight[:, None] * per_token(advantages), torch.zeros_like(mask)
    metrics = {"clipped": (clipped * mask).sum(), "outside_clip": (outside & present).sum().detach()}
    shares = sequence_shares(mask, new)
    return LossOutput((losses * shares).sum(), shares, new.shape[0], metrics=metrics)


def log_group_expectation(log_q: Tensor, group_ids: Tensor) -> Tensor:
    """log of sum q^2 / sum q [B], the sums over the rows of each group alone."""
    expectation = torch.empty_like(log_q)
    for group in torch.unique(group_ids):
        rows = group_ids == group
        expectation[rows] = torch.logsumexp(2 * log_q[rows], 0) - torch.logsumexp(log_q[rows], 0)
    return expectation


def _log_denominator(log_p: Tensor, log_expectation: Tensor, epsilon: float) -> Tensor:
    if epsilon == 0:
        return log_expectation
    if epsilon == 1:
        return log_p
    return torch.logaddexp(math.log(epsilon) + log_p, math.log1p(-epsilon) + log_expectation)
