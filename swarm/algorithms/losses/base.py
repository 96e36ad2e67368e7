"""What every loss takes and gives."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LossConfig:
    """Constants of the objectives."""

    clip_low: float = 0.2
    clip_high: float = 0.28


@dataclass(frozen=True)
class LossOutput:
    """A loss that is a mean: micro-batches are combined exactly by weighting each with its denominator."""

    loss: Tensor
    """Scalar: sum of per-item losses / `denominator`."""
    denominator: int
    """Number of items averaged over."""
    clipped: Tensor
    """Scalar, no gradient: tokens on which the clip decided."""
