"""Divergences from a reference or behaviour policy: estimators [B, T] from the log-probabilities of sampled tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from swarm.algorithms.losses import log_ratio

if TYPE_CHECKING:
    from torch import Tensor

KlEstimatorName = Literal["k1", "k2", "k3"]
BehaviourKlEstimatorName = Literal["cppo", "weighted_k3"]


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


def cppo(new: Tensor, behaviour: Tensor) -> Tensor:
    """exp(d) - d - 1, d = behaviour - new, as published: `k3` against the behaviour policy, on its own samples.

    `k3` estimates KL(new || behaviour) on samples of `new`. On samples of the behaviour policy its mean is
    chi^2(behaviour || new) - KL(behaviour || new): equal to second order near `behaviour`, far from it larger without
    bound, because tokens that have become improbable dominate. Its gradient pulls these back most.

    Source: the code published with arXiv:2508.17850, section 4.1.
    """
    return k3(new, behaviour)


def weighted_k3(new: Tensor, behaviour: Tensor) -> Tensor:
    """rho k3(new, behaviour) = rho log rho - rho + 1, rho = exp(new - behaviour): never negative.

    On samples of the behaviour policy, token by token, value and gradient are unbiased for KL(new || behaviour) and its
    gradient. It hardly pulls back tokens that have become improbable.

    Source: arXiv:2512.02556, eq. 7, with the behaviour policy as the reference.
    """
    difference = log_ratio(new, behaviour)
    return difference.exp() * difference - difference.expm1()


KL_ESTIMATORS: dict[KlEstimatorName, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
"""Estimators on samples of the policy in training."""

BEHAVIOUR_KL_ESTIMATORS: dict[BehaviourKlEstimatorName, Callable[[Tensor, Tensor], Tensor]] = {
    "cppo": cppo,
    "weighted_k3": weighted_k3,
}
"""Estimators on samples of the behaviour policy, to which the divergence is measured."""
