"""REINFORCE with truncated importance weights per token."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from swarm.algorithms.losses.base import CLIPPED, Loss, LossBatch, LossOutput, log_ratio, per_token, token_shares
from swarm.algorithms.reductions import token_mean


class Tis(Loss):
    """Sum over all tokens of -min(rho, c).detach() A new / number of tokens, rho = exp(new - old), c = `ratio_cap`.

    Denominator: unmasked tokens, at least 1. The weight corrects for stale sampling and has no gradient.

    Source: arXiv:2509.19128, eq. 5; truncation: Ionides 2008.
    """

    per_token: ClassVar[bool] = True

    ratio_cap: float = Field(5.0, gt=0)
    """Largest importance weight of a token."""

    def __call__(self, batch: LossBatch) -> LossOutput:
        """See `Loss`."""
        ratio = log_ratio(batch.new, batch.old).exp().detach()
        weight = ratio.clamp(max=self.ratio_cap)
        losses = -weight * per_token(batch.advantages) * batch.new
        return LossOutput(losses, token_shares(batch), {CLIPPED: token_mean(ratio > weight, batch.mask)})
