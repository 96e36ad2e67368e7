"""GSPO: one importance ratio a sequence, length-normalised."""

from __future__ import annotations

from torch import Tensor

from swarm.algorithms.losses.base import (
    Groups,
    LossConfig,
    LossOutput,
    clipped_surrogate,
    log_ratio,
    sequence_shares,
    token_means,
)


def gspo(
    new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, config: LossConfig, groups: Groups | None = None
) -> LossOutput:
    """Mean over sequences of -min(s A, clip(s) A), s = exp(mean over tokens of new - old).

    Denominator: B. A row without unmasked tokens contributes 0.

    Source: arXiv:2507.18071, eq. 5 and 7.
    """
    ratio = token_means(log_ratio(new, old), mask).exp()  # [B]
    losses, clipped = clipped_surrogate(ratio[:, None], advantages, config)
    shares = sequence_shares(mask, new)
    return LossOutput((losses * shares).sum(), shares, new.shape[0], metrics={"clipped": (clipped * mask).sum()})
