"""Which groups have signal, and the advantages of their tokens: one for a whole completion, or one for each turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Literal

from swarm.types import GradedGroup

Advantages = Callable[[Sequence[float]], Sequence[float]]
"""Advantages [N] of rewards [N]."""
Credit = Literal["episode", "turn"]
ROUNDING = 1e-9
"""Rewards that differ by less, absolutely or relatively, are equal: sums of the same parts may differ by rounding."""


def has_signal(rewards: Sequence[float]) -> bool:
    """Whether a group has any advantage other than zero: all are zero when all G rewards are equal, up to rounding."""
    lowest, highest = min(rewards, default=0.0), max(rewards, default=0.0)
    return not math.isclose(lowest, highest, rel_tol=ROUNDING, abs_tol=ROUNDING)


def credited_turns(group: GradedGroup, advantages: Advantages, credit: Credit) -> list[list[float]]:
    """Advantages of each completion's turns, [G]; empty where the completion's own advantage is for all its tokens."""
    everything = range(len(group.rewards))
    if credit == "episode" or all(len(completion.by_turn()) == 1 for completion in group.group.completions):
        return [[] for _ in everything]
    return turn_advantages([group.turn_rewards(index) for index in everything], advantages)


def advantages_by_turn(group: GradedGroup, advantages: Advantages, credit: Credit) -> list[list[float]]:
    """The advantages of all turns, [G][turns]."""
    each_turn = credited_turns(group, advantages, credit)
    each_completion = zip(group.group.completions, advantages(group.rewards), each_turn, strict=True)
    return [turns or [advantage] * (len(completion.turns) or 1) for completion, advantage, turns in each_completion]


def raised(group: GradedGroup, advantages: Advantages, credit: Credit) -> list[list[bool]]:
    """Whether an update makes the tokens of each completion's turns more probable, [G][turns]."""
    return [[each > ROUNDING for each in turns] for turns in advantages_by_turn(group, advantages, credit)]


def turn_advantages(rewards: Sequence[Sequence[float]], advantages: Advantages) -> list[list[float]]:
    """Advantages of returns to go: G lists of a group's turns in, and out.

    A turn's return to go is the sum of the rewards from it on. It is compared with those of the turns of the same
    number in other episodes of the group; without any, it is 0.

    Source: reward to go, as in arXiv:1506.02438, section 2, without a discount; the baseline is the group's.
    """
    to_go = [list(accumulate(reversed(each)))[::-1] for each in rewards]
    found: list[list[float]] = [[] for _ in rewards]
    for turn in range(max(map(len, to_go), default=0)):
        episodes = [k for k, returns in enumerate(to_go) if len(returns) > turn]
        for k, advantage in zip(episodes, advantages([to_go[k][turn] for k in episodes]), strict=True):
            found[k].append(advantage)
    return found
