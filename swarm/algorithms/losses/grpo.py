"""GRPO: clipped surrogate, mean over tokens, then over sequences."""

from __future__ import annotations

from swarm.algorithms.losses.base import ClippedLoss, LossBatch, LossOutput, log_ratio, sequence_shares


class Grpo(ClippedLoss):
    """Mean over sequences of the mean over tokens of -min(rho A, clip(rho) A), rho = exp(new - old).

    Denominator: B. No KL term; asymmetric clip.

    Source: arXiv:2402.03300, eq. 3 without its KL term; clip: arXiv:2503.14476, eq. 10.
    """

    def __call__(self, batch: LossBatch) -> LossOutput:
        """See `Loss`."""
        losses, figures = self.clipped_surrogate(log_ratio(batch.new, batch.old).exp(), batch)
        return LossOutput(losses, sequence_shares(batch), figures)
