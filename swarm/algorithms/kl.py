"""Divergences from a reference or behaviour policy: estimators [B, T] from the log-probabilities of sampled tokens."""

from __future__ import annotations

from torch import Tensor

from swarm.algorithms.losses.base import log_ratio, token_means


def k1(new: Tensor, reference: Tensor) -> Tensor:
    """new - reference: unbiased, of any sign. Source: Schulman 2020, "Approximating KL divergence"."""
    return -log_ratio(reference, new)


def k2(new: Tensor, reference: Tensor) -> Tensor:
    """(reference - new)^2 / 2: biased, never negative. Source: as `k1`."""
    return log_ratio(reference, new).square() / 2


def k3(new: Tensor, reference: Tensor) -> Tensor:
    """exp(d) - d - 1, d = reference - new: unbiased, never negative. Source: as `k1`; arXiv:2402.03300, eq. 4."""
    difference = log_ratio(reference, new)
    return difference.exp() - difference - 1


def cppo_kl(new: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """Scalar: mean over sequences of the mean over tokens of `k3` against the behaviour policy.

    Keeps a policy that learns from stale rollouts near them. Source: as used in arXiv:2508.17850, section 4.1.
    """
    return token_means(k3(new, old), mask).mean()
