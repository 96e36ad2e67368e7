"""How far the data is from the policy that learns from it."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

Number = TypeVar("Number", float, Tensor)


def ess(weights: Tensor, mask: Tensor) -> Tensor:
    """Effective sample size of importance weights [B, T], as a part of their number: (sum w)^2 / (N sum w^2).

    In (0, 1]; 1 when all weights are equal, as on-policy. 1 also when nothing is unmasked.

    Source: Kong 1992; arXiv:2509.19128, section 4.
    """
    count = mask.sum()
    if count == 0:
        return weights.new_ones(())
    kept = weights * mask
    return ess_of_sums(kept.sum(), kept.square().sum(), count)


def ess_of_sums(total: Number, total_of_squares: Number, count: Number) -> Number:
    """`ess` of `count` weights of which only the sum and the sum of squares were kept, micro-batch by micro-batch."""
    return total * total / (count * total_of_squares)
