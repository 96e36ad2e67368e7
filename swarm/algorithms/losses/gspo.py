"""GSPO: one importance ratio per sequence, length-normalised."""

from __future__ import annotations

from swarm.algorithms.losses.base import (
    ClippedLoss,
    LossBatch,
    LossOutput,
    log_ratio,
    sequence_shares,
    token_means,
)


class Gspo(ClippedLoss):
    """Mean over sequences of -min(s A, clip(s) A), s = exp(mean over tokens of new - old).

    Denominator: B. A row without unmasked tokens contributes 0.

    Source: arXiv:2507.18071, eq. 5 and 7.
    """

    def __call__(self, batch: LossBatch) -> LossOutput:
        """See `Loss`."""
        ratio = token_means(log_ratio(batch.new, batch.old), batch.mask).exp()  # [B]
        losses, figures = self.clipped_surrogate(ratio[:, None], batch)
        return LossOutput(losses, sequence_shares(batch), figures)
