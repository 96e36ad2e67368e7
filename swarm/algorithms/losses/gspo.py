"""GSPO: one importance ratio a sequence, length-normalised."""

from __future__ import annotations

from torch import Tensor

from swarm.algorithms.losses.base import Groups, LossConfig, LossOutput, clipped_surrogate, log_ratio, token_means


def gspo(
    new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, config: LossConfig, groups: Groups | None = None
) -> LossOutput:
    """Mean over sequences of -min(s A, clip(s) A), s = exp(mean over tokens of new - old).

    Denominator: B. A row without unmasked tokens has s = 1 and no gradient; its term is left out of the sum.

    Source: arXiv:2507.18071, eq. 5 and 7.
    """
    ratio = token_means(log_ratio(new, old), mask).exp()  # [B]
    losses, clipped = clipped_surrogate(ratio, advantages, config)
    present = mask.sum(dim=-1) > 0
    return LossOutput((losses * present).mean(), new.shape[0], metrics={"clipped": (clipped[:, None] * mask).sum()})
