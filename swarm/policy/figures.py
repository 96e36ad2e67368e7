"""The figures of optimizer steps and of the update they make up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from swarm.algorithms.diagnostics import ess_of_sums
from swarm.policy.logprobs import Scores
from swarm.types import UpdateReport


@dataclass
class StepTotals:
    """Sums over the micro-batches of one optimizer step.

    Numbers only: a small tensor that outlives its micro-batch keeps the allocator from using the space around it again.
    """

    num_sequences: int
    num_tokens: int
    loss: float = 0.0
    clipped: float = 0.0
    entropy: float = 0.0
    ratios: float = 0.0
    """Sum of the tokens' importance ratios."""
    squared_ratios: float = 0.0

    def add(self, loss: Tensor, clipped: Tensor, ratio: Tensor, scores: Scores) -> None:
        """Add a micro-batch."""
        self.loss += float(loss.detach())
        self.clipped += float(clipped)
        self.entropy += float(scores.entropies.sum())
        ratios = ratio[scores.mask].double()
        self.ratios += float(ratios.sum())
        self.squared_ratios += float(ratios.square().sum())

    def report(self, grad_norm: float, skipped: bool) -> UpdateReport:
        """The step's figures."""
        tokens = max(1, self.num_tokens)
        return UpdateReport(
            loss=self.loss,
            grad_norm=grad_norm,
            num_sequences=self.num_sequences,
            num_tokens=self.num_tokens,
            clip_fraction=self.clipped / tokens,
            skipped=skipped,
            ess=ess_of_sums(self.ratios, self.squared_ratios, float(tokens)),
            entropy=self.entropy / tokens,
        )


def summarise(reports: Sequence[UpdateReport]) -> UpdateReport:
    """The steps of one update as one report: means over steps, totals over sequences and tokens."""
    taken = [report for report in reports if not report.skipped]
    tokens = sum(report.num_tokens for report in taken)
    return UpdateReport(
        loss=sum(report.loss for report in taken) / max(1, len(taken)),
        grad_norm=sum(report.grad_norm for report in taken) / max(1, len(taken)),
        num_sequences=sum(report.num_sequences for report in taken),
        num_tokens=tokens,
        clip_fraction=sum(report.clip_fraction * report.num_tokens for report in taken) / max(1, tokens),
        skipped=not taken,
        ess=sum(report.ess * report.num_tokens for report in taken) / max(1, tokens),
        entropy=sum(report.entropy * report.num_tokens for report in taken) / max(1, tokens),
    )
