"""Figures: what a loss or a stage of the round reports, by conventional name, and how to reduce the parts.

Only the code that computes a figure names it: every sink takes the mapping as it is. Names follow TRL's GRPO trainer
where it has the figure (`kl`, `entropy`, `clip_ratio/low_mean`, `completions/mean_length`, `sampling/...`), so that
dashboards can compare trainers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, SupportsFloat

Reduction = Literal["token_mean", "sequence_mean", "step_mean", "sum", "max", "ess"]
"""How the parts of a step reduce to its value, and the steps of an update to the update's:

`token_mean`, `sequence_mean`: the mean over all tokens or completions of all steps.
`step_mean`: one value per step; steps have equal weight.
`ess`: the effective sample size of importance weights as a fraction of their number; steps are weighted by theirs.
`sum`, `max`: over parts and steps.
"""

LAG_MEAN = "sampling/lag_mean"
"""Updates between the policy that sampled a token and the one that trains on it, mean over the tokens of own groups."""
LAG_MAX = "sampling/lag_max"
"""The largest of these lags."""
SLOTS_BUSY = "generate/slots_busy"
"""Share of the engine's slots that had a sequence while it generated a batch."""
REWARD_MEAN = "reward/mean"
"""Mean reward of the completions per round generated."""


@dataclass(frozen=True)
class Figure:
    """The contribution of one part, such as a micro-batch, to a figure. Numbers or scalar tensors without gradient."""

    reduction: Reduction
    total: SupportsFloat
    """The sum or the maximum."""
    count: SupportsFloat = 1.0
    """The divisor of the sum."""
    squares: SupportsFloat = 0.0
    """`ess`: the sum of the squared weights."""

    def detached(self) -> Figure:
        """The same as plain numbers: small tensors that outlive their micro-batch would fragment the allocator's
        memory."""
        return Figure(self.reduction, float(self.total), float(self.count), float(self.squares))

    def with_part(self, other: Figure) -> Figure:
        """The figure over both parts."""
        a, b = float(self.total), float(other.total)
        total = max(a, b) if self.reduction == "max" else a + b
        count, squares = float(self.count) + float(other.count), float(self.squares) + float(other.squares)
        return Figure(self.reduction, total, count, squares)

    @property
    def value(self) -> float:
        """The figure over all parts so far. A mean over nothing is 0, the effective sample size of nothing is 1."""
        total, count = float(self.total), float(self.count)
        if self.reduction in ("sum", "max"):
            return total
        if self.reduction == "ess":
            return total * total / (count * float(self.squares)) if count else 1.0
        return total / max(1.0, count)


Figures = Mapping[str, Figure]


def joined(parts: Iterable[Figures]) -> dict[str, Figure]:
    """The figures over several parts, each by its reduction."""
    whole: dict[str, Figure] = {}
    for part in parts:
        for name, figure in part.items():
            whole[name] = whole[name].with_part(figure) if name in whole else figure.detached()
    return whole


def values(figures: Figures) -> dict[str, float]:
    """The value of each figure."""
    return {name: figure.value for name, figure in figures.items()}


def finite(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """The numbers as JSON can represent them: None for one that is not finite."""
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}


def means_by_task(rounds: Iterable[Mapping[str, tuple[float, int]]]) -> dict[str, float]:
    """Mean reward by task of rounds that have (sum of rewards, completions) by task."""
    totals: dict[str, tuple[float, int]] = {}
    for tasks in rounds:
        for task, (reward, count) in tasks.items():
            total, asked = totals.get(task, (0.0, 0))
            totals[task] = (total + reward, asked + count)
    return {task: total / asked for task, (total, asked) in totals.items() if asked}
