"""GEPO: importance weights against the expectation of the behaviour policy over the group."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from swarm.algorithms.losses.base import (
    CLIPPED,
    ClippedLoss,
    LossBatch,
    LossOutput,
    per_token,
    sequence_shares,
    token_means,
)
from swarm.algorithms.reductions import sequence_mean, token_mean

if TYPE_CHECKING:
    from torch import Tensor


class Gepo(ClippedLoss):
    """Mean over sequences of -w A, w = p / (eps p.detach() + (1 - eps) E), all in log space.

    p is length-normalised: log p = mean over tokens of `new`. E = sum q^2 / sum q over the whole group, where q is the
    sampler's p. Weights differ from 1 at p = q; at eps = 1 the gradient is that of A log p. `group_clip` makes it
    -min(w A, clip(w) A), as in the code published with the paper.

    Denominator: B. A row without unmasked tokens contributes 0. Raises `ValueError` without the group's expectation.

    Source: arXiv:2508.17850, eq. 9, 11, 12 and 15.
    """

    needs_group_expectation: ClassVar[bool] = True

    group_epsilon: float = Field(0.0, ge=0, le=1)
    """Weight eps of the current policy in the denominator."""
    group_clip: bool = False
    """Clip the weight to [1 - clip_low, 1 + clip_high]: not in the paper's equations, but in the code published with
    it."""

    def __call__(self, batch: LossBatch) -> LossOutput:
        """See `Loss`."""
        if batch.group_expectation is None:
            raise ValueError("gepo needs the sampler's expectation over each group, got none")
        log_p = token_means(batch.new, batch.mask)  # [B]
        weight = (log_p - self._log_denominator(log_p.detach(), batch.group_expectation)).exp()
        if self.group_clip:
            losses, figures = self.clipped_surrogate(weight[:, None], batch)
        else:
            losses = -weight[:, None] * per_token(batch.advantages)
            figures = {CLIPPED: token_mean(weight.new_zeros(()), batch.mask)}
        outside = (weight < 1 - self.clip_low) | (weight > 1 + self.clip_high)
        figures["gepo/outside_clip_ratio"] = sequence_mean(outside & (batch.mask.sum(dim=-1) > 0))
        return LossOutput(losses, sequence_shares(batch), figures)

    def _log_denominator(self, log_p: Tensor, log_expectation: Tensor) -> Tensor:
        if self.group_epsilon == 0:
            return log_expectation
        if self.group_epsilon == 1:
            return log_p
        return (math.log(self.group_epsilon) + log_p).logaddexp(math.log1p(-self.group_epsilon) + log_expectation)
