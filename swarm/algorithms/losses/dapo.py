"""DAPO's token-level mean of the clipped surrogate."""

from __future__ import annotations

from torch import Tensor

from swarm.algorithms.losses.base import Groups, LossConfig, LossOutput, clipped_surrogate, log_ratio, token_shares


def dapo(
    new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, config: LossConfig, groups: Groups | None = None
) -> LossOutput:
    """Sum over all tokens of -min(rho A, clip(rho) A) / number of tokens: long completions weigh as they are long.

    Denominator: unmasked tokens, at least 1. Without DAPO's dynamic sampling and length penalty.

    Source: arXiv:2503.14476, eq. 8 and 10.
    """
    losses, clipped = clipped_surrogate(log_ratio(new, old).exp(), advantages, config)
    tokens = max(1.0, float(mask.sum()))
    shares = token_shares(mask, tokens, new)
    return LossOutput((losses * shares).sum(), shares, tokens, True, {"clipped": (clipped * mask).sum()})
