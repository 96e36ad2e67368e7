"""Dr. GRPO: the clipped surrogate over a constant length, so that length is neither rewarded nor punished."""

from __future__ import annotations

from pydantic import Field

from swarm.algorithms.losses.base import ClippedLoss, LossBatch, LossOutput, log_ratio, token_shares


class DrGrpo(ClippedLoss):
    """Sum over all tokens of -min(rho A, clip(rho) A) / (B x max_completion_tokens); goes with `dr_grpo` advantages.

    Denominator: B x max_completion_tokens.

    Source: arXiv:2503.20783, section 3.
    """

    max_completion_tokens: int = Field(512, ge=1)
    """The constant length in the denominator."""

    def __call__(self, batch: LossBatch) -> LossOutput:
        """See `Loss`."""
        losses, figures = self.clipped_surrogate(log_ratio(batch.new, batch.old).exp(), batch)
        return LossOutput(losses, token_shares(batch, float(len(batch.new) * self.max_completion_tokens)), figures)
