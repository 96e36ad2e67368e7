"""What every loss takes and gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class LossConfig:
    """Constants of the objectives; each reads its own."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    """The importance ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    max_completion_tokens: int = 512
    """Constant length that `dr_grpo` divides by."""
    ratio_cap: float = 5.0
    """`tis`: largest importance weight."""
    group_epsilon: float = 0.0
    """`gepo`: part of the current policy in the denominator, in [0, 1]."""
    group_clip: bool = False
    """`gepo`: clip the weight as `gspo` clips its ratio."""


@dataclass(frozen=True)
class Groups:
    """Which rows belong together, for losses that look at whole groups."""

    ids: Tensor
    """[B] equal numbers for completions of one question."""
    log_expectation: Tensor | None = None
    """[B] log of the group expectation of the behaviour policy, where the record carries it; NaN where it does not."""


@dataclass(frozen=True)
class LossOutput:
    """A loss that is a mean, so that micro-batches combine exactly: sum of loss x denominator over all / sum of
    denominators."""

    loss: Tensor
    """Scalar."""
    shares: Tensor
    """[B, T] part of each token in the mean, 0 outside the mask: a penalty a token is averaged with the same."""
    denominator: float
    """What the sum of per-item losses was divided by."""
    per_token: bool = False
    """The denominator counts tokens; otherwise it is proportional to the number of sequences."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """Scalars without gradient. `clipped` is the number of tokens on which a clip or cap decided."""


class Loss(Protocol):
    """The one signature of all objectives."""

    def __call__(
        self,
        new: Tensor,
        old: Tensor,
        advantages: Tensor,
        mask: Tensor,
        config: LossConfig,
        groups: Groups | None = None,
    ) -> LossOutput:
        """`new`, `old` [B, T] log-probabilities, `mask` [B, T] 1 on tokens the loss may touch.

        `advantages` [B] of each completion, or [B, T] where its tokens weigh differently. Every objective is linear in
        non-negative multiples of them: a weight of the loss is a weight of the advantages.
        """
        ...


def log_ratio(new: Tensor, old: Tensor) -> Tensor:
    """new - old, element by element, limited so that its exponential stays finite."""
    return (new - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def per_token(advantages: Tensor) -> Tensor:
    """Advantages [B] or [B, T] in a shape that broadcasts over tokens."""
    return advantages[:, None] if advantages.dim() == 1 else advantages


def token_shares(mask: Tensor, denominator: float, like: Tensor) -> Tensor:
    """[B, T] one `denominator`-th for each unmasked token; of the type of `like`, whatever that of the mask."""
    return mask.to(like.dtype) / denominator


def sequence_shares(mask: Tensor, like: Tensor) -> Tensor:
    """[B, T] each row the same share, divided among its unmasked tokens; of the type of `like`."""
    return mask.to(like.dtype) / mask.sum(dim=-1, keepdim=True).clamp(min=1) / mask.shape[0]


def token_means(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over each row's unmasked tokens [B]; 0 for a row without any."""
    return (values * mask).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)


def clipped_surrogate(ratio: Tensor, advantages: Tensor, config: LossConfig) -> tuple[Tensor, Tensor]:
    """-min(rho A, clip(rho) A) and where the clip decided; `ratio` and `advantages` are broadcast over tokens."""
    free = ratio * per_token(advantages)
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * per_token(advantages)
    return -torch.minimum(free, clipped), (clipped < free).detach()
