"""GRPO's clipped surrogate with asymmetric clipping and no KL term."""

from __future__ import annotations

import torch
from torch import Tensor

from swarm.algorithms.losses.base import LossConfig, LossOutput

MAX_LOG_RATIO = 20.0


def grpo(new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, config: LossConfig) -> LossOutput:
    """Mean over sequences of the mean over tokens of -min(rho A, clip(rho, 1 - low, 1 + high) A).

    rho = exp(new - old). `new`, `old`, `mask` are [B, T], `advantages` [B]. The denominator is B; a row without
    unmasked tokens contributes 0.

    Source: arXiv:2402.03300, eq. 3 without its KL term; asymmetric clip: arXiv:2503.14476, eq. 10.
    """
    ratio = torch.exp((new - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))  # [B, T]
    clipped_ratio = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    gain = torch.minimum(ratio * advantages[:, None], clipped_ratio * advantages[:, None])
    lengths = mask.sum(dim=-1).clamp(min=1)  # [B]
    per_sequence = -(gain * mask).sum(dim=-1) / lengths
    with torch.no_grad():
        decided = (clipped_ratio * advantages[:, None] < ratio * advantages[:, None]) & mask.bool()
    return LossOutput(loss=per_sequence.mean(), denominator=new.shape[0], clipped=decided.sum())
