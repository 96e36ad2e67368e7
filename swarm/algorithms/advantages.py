"""Group-relative advantages: [P, G] rewards in, [P, G] advantages out. A group of one has advantage 0.

`turn_advantages` applies them to the turns of episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

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


def turn_advantages(
    rewards: Sequence[Sequence[float]], advantages: Callable[[Sequence[float]], Sequence[float]]
) -> list[list[float]]:
    """Advantages of returns to go: G lists of a group's turns in, and out.

    A turn's return to go is the sum of the rewards from it on. It is compared, by `advantages` ([N] to [N]), with those
    of the turns of the same number in other episodes of the group; without any, it is 0.

    Source: reward to go, as in arXiv:1506.02438, section 2, without a discount; the baseline is the group's.
    """
    to_go = [list(accumulate(reversed(each)))[::-1] for each in rewards]
    found: list[list[float]] = [[] for _ in rewards]
    for turn in range(max(map(len, to_go), default=0)):
        episodes = [k for k, returns in enumerate(to_go) if len(returns) > turn]
        for k, advantage in zip(episodes, advantages([to_go[k][turn] for k in episodes]), strict=True):
            found[k].append(advantage)
    return found


ADVANTAGES: dict[str, Callable[[Tensor], Tensor]] = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}
