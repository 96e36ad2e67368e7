"""The learning rate of each method, chosen from a grid before any other run and with other seeds.

By default the one with the highest accuracy on-policy, over the second half of the evaluations: a rate that is unstable
there loses. With a target divergence from the sampler, the one that comes nearest under delay, since accuracy on a
large model would need too many runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.common.report import Row
from benchmarks.staleness.cell import Bench, Cell, typical

SEEDS = (101, 102)
"""Of the runs that choose; never those of the table."""
ON_POLICY = "0"
DELAYED = "lognormal"
NO_DIVERGENCE = 1e-9


@dataclass(frozen=True)
class Choice:
    """A method's learning rate and what it was chosen by."""

    arm: str
    learning_rate: float
    tried: dict[float, list[float]]
    """Accuracy, or divergence in nats a token, of each seed by learning rate."""
    target: float | None

    def rows(self) -> list[Row]:
        """The grid, then the choice."""
        what = "accuracy on-policy" if self.target is None else "divergence from the sampler"
        rows = []
        for rate, values in self.tried.items():
            name, spread = f"choosing, {self.arm}, learning rate {rate:g}: {what}", (min(values), max(values))
            rows.append(Row(name, statistics.fmean(values), "", spread=spread, n=len(values)))
        return [*rows, Row(f"{self.arm}: learning rate", self.learning_rate, "", n=1)]


def choose(bench: Bench, arm: str, rates: Sequence[float], seeds: Sequence[int], divergence: float | None) -> Choice:
    """The learning rate of `arm`; `divergence` in nats a token is the target, or None for the best accuracy."""
    if len(rates) == 1:
        return Choice(arm, rates[0], {}, divergence)
    delay, figure = (ON_POLICY, later_accuracy) if divergence is None else (DELAYED, _divergence)
    tried = {rate: [figure(bench.cell(arm, delay, seed, rate)) for seed in seeds] for rate in rates}

    def fitness(rate: float) -> float:
        mean = statistics.fmean(tried[rate])
        return mean if divergence is None else -abs(math.log(max(mean, NO_DIVERGENCE) / divergence))

    return Choice(arm, max(rates, key=fitness), tried, divergence)


def later_accuracy(cell: Cell) -> float:
    """Mean over the second half of the evaluations; 0 when the run broke off."""
    later = cell.accuracies[1:]
    return 0.0 if cell.gave_up or not later else statistics.fmean(later[len(later) // 2 :])


def _divergence(cell: Cell) -> float:
    return typical(cell.behaviour_kl)
