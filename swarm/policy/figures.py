"""The figures of optimizer steps and of the update they make up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from swarm.algorithms.diagnostics import ess
from swarm.policy.logprobs import Scores
from swarm.types import UpdateReport


@dataclass
class StepTotals:
    """Sums over the micro-batches of one optimizer step."""

    num_sequences: int
    num_tokens: int
    loss: float = 0.0
    clipped: float = 0.0
    entropy: float = 0.0
    weights: list[Tensor] = field(default_factory=list)
    """Importance weights of the unmasked tokens."""

    def add(self, loss: Tensor, clipped: Tensor, ratio: Tensor, scores: Scores) -> None:
        """Add a micro-batch."""
        self.loss += float(loss.detach())
        self.clipped += float(clipped)
        self.entropy += float(scores.entropies.sum())
        self.weights.append(ratio[scores.mask].cpu())

    def report(self, grad_norm: float, skipped: bool) -> UpdateReport:
        """The step's figures."""
        weights = torch.cat(self.weights)
        tokens = max(1, self.num_tokens)
        return UpdateReport(
            loss=self.loss,
            grad_norm=grad_norm,
            num_sequences=self.num_sequences,
            num_tokens=self.num_tokens,
            clip_fraction=self.clipped / tokens,
            skipped=skipped,
            ess=float(ess(weights, torch.ones_like(weights))),
            entropy=self.entropy / tokens,
        )


def merge(parts: Sequence[StepTotals]) -> StepTotals:
    """The totals of a step of which each rank did a part."""
    return StepTotals(
        num_sequences=parts[0].num_sequences,
        num_tokens=parts[0].num_tokens,
        loss=sum(part.loss for part in parts),
        clipped=sum(part.clipped for part in parts),
        entropy=sum(part.entropy for part in parts),
        weights=[weights for part in parts for weights in part.weights],
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
