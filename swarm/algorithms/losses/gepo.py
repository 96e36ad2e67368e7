"""GEPO: importance weights against the expectation of the behaviour policy over the group."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from swarm.algorithms.losses.base import (
    CLIPPED,
    ClippedLoss,
    LossBatch,
    LossOutput,
    sequence_shares,
    token_means,
)
from swarm.algorithms.reductions import sequence_mean, token_mean

if TYPE_CHECKING:
    from torch import Tensor

MAX_VARIANCE = 0.25
"""Largest variance of values in [0, 1], such as probabilities. Source: Popoviciu 1935."""


class Gepo(ClippedLoss):
    """Mean over sequences of -w A, w = p / (eps p.detach() + (1 - eps) E), all in log space.

    p is length-normalised: log p = mean over tokens of `new`. E = sum q^2 / sum q over the whole group, where q is the
    sampler's p. Weights differ from 1 at p = q; at eps = 1 the gradient is that of A log p. `group_clip` makes it
    -min(w A, clip(w) A), as in the code published with the paper.

    eps = `group_epsilon`, or with `epsilon_from: variance` group_epsilon Var(q) / 0.25, in [0, group_epsilon]:
    Var(q) = sum q (q - E)^2 / sum q, with the weights of E, is at most 0.25. The paper asks for eps proportional to
    Var(q) without a constant or the variance's weights; both are ours.

    Denominator: B. A row without unmasked tokens contributes 0. Raises `ValueError` without the group's expectation.

    Source: arXiv:2508.17850, eq. 9, 11, 12 and 15.
    """

    needs_group_expectation: ClassVar[bool] = True

    group_epsilon: float = Field(0.0, ge=0, le=1)
    """Weight eps of the current policy in the denominator."""
    epsilon_from: Literal["constant", "variance"] = "constant"
    """`constant`: eps is `group_epsilon` in every group; `variance`: proportional to the variance of the sampler's
    probabilities in the group, and `group_epsilon` at the largest possible variance, 0.25."""
    group_clip: bool = False
    """Clip the weight to [1 - clip_low, 1 + clip_high]: not in the paper's equations, but in the code published with
    it."""

    @model_validator(mode="after")
    def _a_dual_clip_needs_a_clip(self) -> Gepo:
        if self.dual_clip is not None and not self.group_clip:
            raise ValueError(f"dual_clip must be null without group_clip, got {self.dual_clip}: set group_clip to true")
        return self

    def __call__(self, batch: LossBatch) -> LossOutput:
        """See `Loss`."""
        if batch.group_expectation is None:
            raise ValueError("gepo needs the sampler's expectation over each group, got none")
        log_p = token_means(batch.new, batch.mask)  # [B]
        weight = (log_p - self._log_denominator(log_p.detach(), batch.group_expectation, batch.group_variance)).exp()
        if self.group_clip:
            losses, figures = self.clipped_surrogate(weight[:, None], batch)
        else:
            losses = -weight[:, None] * self.counted_advantages(batch)
            figures = {CLIPPED: token_mean(weight.new_zeros(()), batch.mask)}
        outside = (weight < 1 - self.clip_low) | (weight > 1 + self.clip_high)
        figures["gepo/outside_clip_ratio"] = sequence_mean(outside & (batch.mask.sum(dim=-1) > 0))
        return LossOutput(losses, sequence_shares(batch), figures)

    def _log_denominator(self, log_p: Tensor, log_expectation: Tensor, variance: Tensor | None) -> Tensor:
        """log of eps p + (1 - eps) E [B]."""
        if self.epsilon_from == "variance":
            if variance is None:
                raise ValueError("gepo with epsilon_from: variance needs the variance of each group, got none")
            epsilon = self.group_epsilon * (variance / MAX_VARIANCE)
            # At eps 0 and 1 one of the logarithms is -inf and adds nothing.
            return (epsilon.log() + log_p).logaddexp((-epsilon).log1p() + log_expectation)
        if self.group_epsilon == 0:
            return log_expectation
        if self.group_epsilon == 1:
            return log_p
        return (math.log(self.group_epsilon) + log_p).logaddexp(math.log1p(-self.group_epsilon) + log_expectation)
