"""REINFORCE with truncated importance weights a token."""

from __future__ import annotations

from torch import Tensor

from swarm.algorithms.losses.base import Groups, LossConfig, LossOutput, log_ratio, per_token, token_shares


def tis(
    new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, config: LossConfig, groups: Groups | None = None
) -> LossOutput:
    """Sum over all tokens of -min(rho, c).detach() A new / number of tokens, rho = exp(new - old), c = `ratio_cap`.

    Denominator: unmasked tokens, at least 1. The weight corrects for stale sampling and has no gradient of its own.

    Source: arXiv:2509.19128, eq. 5; truncation: Ionides 2008.
    """
    ratio = log_ratio(new, old).exp().detach()
    weight = ratio.clamp(max=config.ratio_cap)
    tokens = max(1.0, float(mask.sum()))
    shares = token_shares(mask, tokens, new)
    losses = -weight * per_token(advantages) * new
    return LossOutput((losses * shares).sum(), shares, tokens, True, {"clipped": ((ratio > weight) * mask).sum()})
