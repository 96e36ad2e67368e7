"""Divergences from a reference or behaviour policy: estimators [B, T] from the log-probabilities of sampled tokens."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from swarm.algorithms.losses.base import log_ratio, token_means
from swarm.algorithms.names import KlEstimatorName


def k1(new: Tensor, reference: Tensor) -> Tensor:
    """new - reference: unbiased, of any sign.

    As a penalty it only adds noise: on-policy the mean of its gradient is 0.

    Source: Schulman 2020, "Approximating KL divergence"; gradient: arXiv:2506.09477.
    """
    return -log_ratio(reference, new)


def k2(new: Tensor, reference: Tensor) -> Tensor:
    """(reference - new)^2 / 2: biased, never negative.

    As a penalty it has, on-policy and token by token, the gradient of KL(new || reference).

    Source: as `k1`.
    """
    return log_ratio(reference, new).square() / 2


def k3(new: Tensor, reference: Tensor) -> Tensor:
    """exp(d) - d - 1, d = reference - new: unbiased, never negative.

    As a penalty it has, on-policy and token by token, the gradient of KL(reference || new).

    Source: as `k1`; arXiv:2402.03300, eq. 4.
    """
    difference = log_ratio(reference, new)
    return difference.exp() - difference - 1


def cppo_kl(new: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """Scalar: mean over sequences of the mean over tokens of `k3` against the behaviour policy.

    Keeps a policy near the stale rollouts that it learns from. Source: as used in arXiv:2508.17850, section 4.1.
    """
    return token_means(k3(new, old), mask).mean()


KL_ESTIMATORS: dict[KlEstimatorName, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
