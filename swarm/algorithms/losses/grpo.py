"""GRPO: clipped surrogate, mean over tokens, then over sequences."""

from __future__ import annotations

from torch import Tensor

from swarm.algorithms.losses.base import Groups, LossConfig, LossOutput, clipped_surrogate, log_ratio, sequence_shares


def grpo(
    new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, config: LossConfig, groups: Groups | None = None
) -> LossOutput:
    """Mean over sequences of the mean over tokens of -min(rho A, clip(rho) A), rho = exp(new - old).

    Denominator: B. No KL term; asymmetric clip.

    Source: arXiv:2402.03300, eq. 3 without its KL term; clip: arXiv:2503.14476, eq. 10.
    """
    losses, clipped = clipped_surrogate(log_ratio(new, old).exp(), advantages, config)
    shares = sequence_shares(mask, new)
    return LossOutput((losses * shares).sum(), shares, new.shape[0], metrics={"clipped": (clipped * mask).sum()})
