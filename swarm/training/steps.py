"""Optimizer steps, and the report of an update of several steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from swarm.figures import Figure, Figures, joined
from swarm.training.rows import Row
from swarm.types import UpdateReport


@dataclass
class StepTotals:
    """Sums over the micro-batches of one optimizer step, in the making: ranks add up theirs before it is taken."""

    num_sequences: int = 0
    num_tokens: int = 0
    """Completion tokens of the rows."""
    loss: float = 0.0
    figures: dict[str, Figure] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Sequence[Row]) -> StepTotals:
        """Totals before the first micro-batch of a step on `rows`."""
        return cls(len(rows), sum(len(row.completion) for row in rows))

    def add(self, loss: float, figures: Figures) -> None:
        """Add a micro-batch's."""
        self.loss += loss
        self.figures = joined([self.figures, figures])

    def rescaled(self, rows: Sequence[Row], per_token: bool) -> tuple[StepTotals, float]:
        """The totals of a step on all of `rows`, and the factor for its gradient.

        The sums contain every row, but their denominator counts only the rows known at the start.
        """
        final = StepTotals.of(rows)
        scale = self.num_tokens / final.num_tokens if per_token else self.num_sequences / final.num_sequences
        whole = replace(self, num_sequences=final.num_sequences, num_tokens=final.num_tokens, loss=self.loss * scale)
        return whole, scale


def merge(parts: Sequence[StepTotals]) -> StepTotals:
    """The totals of a step over all ranks."""
    return replace(parts[0], loss=sum(part.loss for part in parts), figures=joined(part.figures for part in parts))


@dataclass(frozen=True)
class Step:
    """One optimizer step, as it ended. An update may take several."""

    totals: StepTotals
    grad_norm: float
    learning_rate: float

    @property
    def skipped(self) -> bool:
        """Whether the loss or the gradient was not finite."""
        return not (math.isfinite(self.totals.loss) and math.isfinite(self.grad_norm))

    @property
    def figures(self) -> dict[str, Figure]:
        """All figures of the step."""
        return {
            "loss": Figure("step_mean", self.totals.loss),
            "grad_norm": Figure("step_mean", self.grad_norm),
            "learning_rate": Figure("step_mean", self.learning_rate),
            "train/num_sequences": Figure("sum", self.totals.num_sequences),
            "train/num_tokens": Figure("sum", self.totals.num_tokens),
            **self.totals.figures,
        }


def summarise(steps: Sequence[Step]) -> UpdateReport:
    """The report of one update's steps; skipped steps are left out."""
    taken = [step.figures for step in steps if not step.skipped]
    names = dict.fromkeys(name for figures in taken for name in figures)
    values = {name: _over_steps([figures[name] for figures in taken if name in figures]) for name in names}
    values["train/num_skipped_steps"] = float(len(steps) - len(taken))
    return UpdateReport(values, skipped=not taken)


def _over_steps(parts: Sequence[Figure]) -> float:
    """One figure of an update; a mean's steps count by what it is the mean over."""
    reduction = parts[0].reduction
    if reduction == "sum":
        return sum(figure.value for figure in parts)
    if reduction == "max":
        return max(figure.value for figure in parts)
    weights = [1.0 if reduction == "step_mean" else float(figure.count) for figure in parts]
    if not any(weights):
        return parts[0].value
    return sum(figure.value * weight for figure, weight in zip(parts, weights, strict=True)) / sum(weights)
