"""Group-relative advantages: [P, G] rewards in, [P, G] advantages out. A group of one has advantage 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from swarm.kinds import Kinds

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-6


def grpo(rewards: Tensor) -> Tensor:
    """(r - mean) / (std + 1e-6), std with Bessel's correction.

    A group of one has an undefined standard deviation; its advantage is 0.

    Source: arXiv:2402.03300, section 4.1.
    """
    if rewards.shape[-1] < 2:
        return rewards.new_zeros(rewards.shape)
    return dr_grpo(rewards) / (rewards.std(dim=-1, correction=1, keepdim=True) + EPSILON)


def dr_grpo(rewards: Tensor) -> Tensor:
    """r - mean: dividing by the standard deviation would favour questions that are nearly solved or nearly hopeless.

    Source: arXiv:2503.20783, section 3.
    """
    return rewards - rewards.mean(dim=-1, keepdim=True)


def rloo(rewards: Tensor) -> Tensor:
    """r minus the mean of the other G - 1 rewards, which is G / (G - 1) times r - mean.

    Source: arXiv:2402.14740, section 2.3.
    """
    group_size = rewards.shape[-1]
    if group_size < 2:
        return rewards.new_zeros(rewards.shape)
    return dr_grpo(rewards) * group_size / (group_size - 1)


ADVANTAGES: Kinds[Callable[[Tensor], Tensor]] = Kinds(
    "advantage", "swarm.advantages", "", {name: f"{__name__}:{name}" for name in ("grpo", "dr_grpo", "rloo")}
)
