"""DAPO's token-level mean of the clipped surrogate."""

from __future__ import annotations

from typing import ClassVar

from swarm.algorithms.losses.base import ClippedLoss, LossBatch, LossOutput, log_ratio, token_shares


class Dapo(ClippedLoss):
    """Sum over all tokens of -min(rho A, clip(rho) A) / number of tokens: long completions weigh more.

    Denominator: unmasked tokens, at least 1. Without DAPO's dynamic sampling and length penalty.

    Source: arXiv:2503.14476, eq. 8 and 10.
    """

    per_token: ClassVar[bool] = True

    def __call__(self, batch: LossBatch) -> LossOutput:
        """See `Loss`."""
        losses, figures = self.clipped_surrogate(log_ratio(batch.new, batch.old).exp(), batch)
        return LossOutput(losses, token_shares(batch), figures)
