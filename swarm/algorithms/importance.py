"""Importance weights [B, T] for tokens that another policy sampled than the one that trains on them.

The sampler's log-probabilities differ from the trainer's when its engine or precision differs, or its weights are
older. A clipped objective then has to correct for both the update and the sampler with one ratio, new / behaviour.
These treatments separate the two: the clip is against `proximal`, the trainer's own policy when the batch was built,
and each token's loss is multiplied by a weight computed from r = proximal / behaviour, a constant of the batch without
gradient. Source: the decoupled objective of arXiv:2110.00641, as used for stale samplers in arXiv:2505.24298.

A weight outside [floor, cap] is either moved to the nearer bound (truncation: biased, bounded variance) or set to 0
(masking: the trainer ignores tokens on which it and the sampler disagree). A floor of 0 is none.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

ImportanceName = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


class ImportanceWeights(NamedTuple):
    """A treatment's weights."""

    weights: Tensor
    """[B, T] in [0, cap], without gradient."""
    capped: Tensor
    """[B, T] whether the ratio was outside [floor, cap]."""


class Treatment(Protocol):
    """Computes weights from the ratios between the trainer's and the sampler's policy."""

    def __call__(
        self, proximal: Tensor, behaviour: Tensor, mask: Tensor, cap: float, floor: float = 0.0
    ) -> ImportanceWeights:
        """`proximal`, `behaviour` [B, T] log-probabilities, `mask` [B, T], 0 <= `floor` < `cap`."""


def none(proximal: Tensor, behaviour: Tensor, mask: Tensor, cap: float, floor: float = 0.0) -> ImportanceWeights:
    """1: the objective's own ratio, against the behaviour policy, is the only correction."""
    weights = behaviour.new_ones(behaviour.shape)
    return ImportanceWeights(weights, weights < 0)


def token_truncate(
    proximal: Tensor, behaviour: Tensor, mask: Tensor, cap: float, floor: float = 0.0
) -> ImportanceWeights:
    """clip(r_t, floor, cap), r_t = exp(proximal - behaviour) of each token.

    Source: Yao et al. 2025, "On the Rollout-Training Mismatch in Modern RL Systems" (TIS); Ionides 2008.
    """
    return _truncate(_token_log_ratios(proximal, behaviour, mask), cap, floor)


def token_mask(proximal: Tensor, behaviour: Tensor, mask: Tensor, cap: float, floor: float = 0.0) -> ImportanceWeights:
    """r_t where floor <= r_t <= cap, else 0.

    Source: IcePop, arXiv:2510.18855, which has floor 0.5 and cap 5.
    """
    return _mask(_token_log_ratios(proximal, behaviour, mask), cap, floor)


def sequence_truncate(
    proximal: Tensor, behaviour: Tensor, mask: Tensor, cap: float, floor: float = 0.0
) -> ImportanceWeights:
    """clip(r, floor, cap), r = exp(sum over tokens of proximal - behaviour), the same for all tokens of a completion.

    Unbiased between the bounds; the variance grows with the completion's length.

    Source: Ionides 2008, on whole completions.
    """
    return _truncate(_sequence_log_ratios(proximal, behaviour, mask), cap, floor)


def sequence_mask(
    proximal: Tensor, behaviour: Tensor, mask: Tensor, cap: float, floor: float = 0.0
) -> ImportanceWeights:
    """r as in `sequence_truncate` where floor <= r <= cap, else 0, which removes the completion.

    Source: Liu et al. 2025, "When Speed Kills Stability" (MIS).
    """
    return _mask(_sequence_log_ratios(proximal, behaviour, mask), cap, floor)


TREATMENTS: dict[ImportanceName, Treatment] = {
    "none": none,
    "token_truncate": token_truncate,
    "token_mask": token_mask,
    "sequence_truncate": sequence_truncate,
    "sequence_mask": sequence_mask,
}


def _token_log_ratios(proximal: Tensor, behaviour: Tensor, mask: Tensor) -> Tensor:
    return (proximal - behaviour).detach() * mask


def _sequence_log_ratios(proximal: Tensor, behaviour: Tensor, mask: Tensor) -> Tensor:
    total = _token_log_ratios(proximal, behaviour, mask).sum(dim=-1, keepdim=True)
    return total.expand_as(proximal)


def _truncate(log_ratios: Tensor, cap: float, floor: float) -> ImportanceWeights:
    # Limit before the exponential, which would overflow.
    low, high = math.log(floor) if floor else -math.inf, math.log(cap)
    return ImportanceWeights(log_ratios.clamp(low, high).exp(), (log_ratios < low) | (log_ratios > high))


def _mask(log_ratios: Tensor, cap: float, floor: float) -> ImportanceWeights:
    weights, capped = _truncate(log_ratios, cap, floor)
    return ImportanceWeights(weights.masked_fill(capped, 0), capped)
