"""Figures: what a loss or a stage of the round reports, by conventional name, and how the parts of one combine.

A figure is named where it is computed and nowhere else: every sink takes the mapping as it is. Names follow the
dashboards of TRL's GRPO trainer where it has the figure (`kl`, `entropy`, `clip_ratio/low_mean`,
`completions/mean_length`, `sampling/...`), so that curves of different trainers lie over each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, SupportsFloat

Reduction = Literal["token_mean", "sequence_mean", "step_mean", "sum", "max", "ess"]
"""How parts of one step become its value, and the steps of one update that of the update:

`token_mean`, `sequence_mean`: the mean over all tokens or completions; steps weigh as many of them as they have.
`step_mean`: a step has one value, steps weigh alike.
`ess`: the effective sample size of importance weights as a part of their number, steps weigh as their tokens.
`sum`, `max`: over parts and steps.
"""

LAG_MEAN = "sampling/lag_mean"
"""Updates between the policy that sampled a token and the one that trains on it, mean over own groups' tokens."""
LAG_MAX = "sampling/lag_max"
"""The largest of these lags."""
REWARD_MEAN = "reward/mean"
"""Mean reward of the completions a round generated."""


@dataclass(frozen=True)
class Figure:
    """What one part, such as a micro-batch, contributes to a figure; scalars without gradient, numbers or tensors."""

    reduction: Reduction
    total: SupportsFloat
    """The sum, or the largest."""
    count: SupportsFloat = 1.0
    """What the sum is divided by."""
    squares: SupportsFloat = 0.0
    """`ess`: the sum of the squared weights."""

    def detached(self) -> Figure:
        """The same in numbers: a small tensor that outlives its micro-batch keeps the allocator from the space around
        it."""
        return Figure(self.reduction, float(self.total), float(self.count), float(self.squares))

    def with_part(self, other: Figure) -> Figure:
        """The figure of two parts together."""
        a, b = float(self.total), float(other.total)
        total = max(a, b) if self.reduction == "max" else a + b
        count, squares = float(self.count) + float(other.count), float(self.squares) + float(other.squares)
        return Figure(self.reduction, total, count, squares)

    @property
    def value(self) -> float:
        """The figure of all parts so far. A mean over nothing is 0, the effective sample size of nothing 1."""
        total, count = float(self.total), float(self.count)
        if self.reduction in ("sum", "max"):
            return total
        if self.reduction == "ess":
            return total * total / (count * float(self.squares)) if count else 1.0
        return total / max(1.0, count)


Figures = Mapping[str, Figure]


def joined(parts: Iterable[Figures]) -> dict[str, Figure]:
    """The figures of several parts together, each by its reduction."""
    whole: dict[str, Figure] = {}
    for part in parts:
        for name, figure in part.items():
            whole[name] = whole[name].with_part(figure) if name in whole else figure.detached()
    return whole


def values(figures: Figures) -> dict[str, float]:
    """The value of each figure."""
    return {name: figure.value for name, figure in figures.items()}


def finite(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """The numbers as JSON can carry them: None for one that is not finite."""
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}
