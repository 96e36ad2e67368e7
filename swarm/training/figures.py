"""The figures of optimizer steps and of the update they make up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from swarm.algorithms.diagnostics import ess_of_sums
from swarm.training.objective import Share
from swarm.training.rows import Row
from swarm.types import UpdateReport


@dataclass
class StepTotals:
    """Sums over the micro-batches of one optimizer step.

    Numbers only: a small tensor that outlives its micro-batch keeps the allocator from using the space around it again.
    """

    num_sequences: int
    num_tokens: int
    num_own_tokens: int = 0
    lag: float = 0.0
    """Updates since own tokens were sampled, mean over them."""
    max_lag: int = 0
    loss: float = 0.0
    clipped: float = 0.0
    capped: float = 0.0
    behaviour_kl: float = 0.0
    mismatch: float = 0.0
    reference_kl: float = 0.0
    entropy: float = 0.0
    ratios: float = 0.0
    """Sum of the tokens' importance ratios."""
    squared_ratios: float = 0.0
    max_ratio: float = 0.0
    sequence_ratios: float = 0.0
    """Sum of the completions' importance ratios."""
    squared_sequence_ratios: float = 0.0
    per_token: bool = False
    """What divides the loss; see `Share`."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> StepTotals:
        """Before the first micro-batch of a step on `rows`."""
        lags = [part for row in rows for part in row.lags]
        return cls(
            num_sequences=len(rows),
            num_tokens=sum(len(row.completion) for row in rows),
            num_own_tokens=sum(len(row.completion) for row in rows if not row.external),
            lag=sum(lag * tokens for lag, tokens in lags) / max(1, sum(tokens for _, tokens in lags)),
            max_lag=max((lag for lag, _ in lags), default=0),
        )

    def add(self, share: Share) -> None:
        """Add a micro-batch."""
        self.loss += float(share.loss.detach())
        self.clipped += float(share.clipped)
        self.capped += float(share.capped)
        self.behaviour_kl += float(share.behaviour_kl)
        self.mismatch += float(share.mismatch)
        self.reference_kl += float(share.reference_kl)
        self.entropy += float(share.entropy)
        ratios = share.ratios.double()
        self.ratios += float(ratios.sum())
        self.squared_ratios += float(ratios.square().sum())
        self.max_ratio = max(self.max_ratio, float(ratios.max()))
        sequence_ratios = share.sequence_ratios.double()
        self.sequence_ratios += float(sequence_ratios.sum())
        self.squared_sequence_ratios += float(sequence_ratios.square().sum())
        self.per_token = share.per_token

    def rescaled(self, rows: Sequence[Row]) -> tuple[StepTotals, float]:
        """The totals of a step on all of `rows`, of which only some were known at first, and what scales its gradient.

        Every row is in the sums already; only their divisor was that of the rows known at first.
        """
        final = StepTotals.of(rows)
        scale = self.num_tokens / final.num_tokens if self.per_token else self.num_sequences / final.num_sequences
        whole = replace(
            self,
            num_sequences=final.num_sequences,
            num_tokens=final.num_tokens,
            num_own_tokens=final.num_own_tokens,
            lag=final.lag,
            max_lag=final.max_lag,
            loss=self.loss * scale,
        )
        return whole, scale

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
            sequence_ess=ess_of_sums(self.sequence_ratios, self.squared_sequence_ratios, float(self.num_sequences)),
            entropy=self.entropy / tokens,
            max_ratio=self.max_ratio,
            behaviour_kl=self.behaviour_kl / tokens,
            mismatch=self.mismatch / max(1, self.num_own_tokens),
            reference_kl=self.reference_kl / tokens,
            importance_cap_fraction=self.capped / tokens,
            lag=self.lag,
            max_lag=self.max_lag,
        )


def merge(parts: Sequence[StepTotals]) -> StepTotals:
    """The totals of a step of which each rank did a part."""
    return replace(
        parts[0],
        loss=sum(part.loss for part in parts),
        clipped=sum(part.clipped for part in parts),
        capped=sum(part.capped for part in parts),
        behaviour_kl=sum(part.behaviour_kl for part in parts),
        mismatch=sum(part.mismatch for part in parts),
        reference_kl=sum(part.reference_kl for part in parts),
        entropy=sum(part.entropy for part in parts),
        ratios=sum(part.ratios for part in parts),
        squared_ratios=sum(part.squared_ratios for part in parts),
        max_ratio=max(part.max_ratio for part in parts),
        sequence_ratios=sum(part.sequence_ratios for part in parts),
        squared_sequence_ratios=sum(part.squared_sequence_ratios for part in parts),
        per_token=any(part.per_token for part in parts),
    )


def summarise(reports: Sequence[UpdateReport]) -> UpdateReport:
    """The steps of one update as one report: means over steps or tokens, totals over sequences and tokens."""
    taken = [report for report in reports if not report.skipped]
    tokens = sum(report.num_tokens for report in taken)

    def a_token(figures: Sequence[float]) -> float:
        return sum(f * report.num_tokens for f, report in zip(figures, taken, strict=True)) / max(1, tokens)

    return UpdateReport(
        loss=sum(report.loss for report in taken) / max(1, len(taken)),
        grad_norm=sum(report.grad_norm for report in taken) / max(1, len(taken)),
        num_sequences=sum(report.num_sequences for report in taken),
        num_tokens=tokens,
        clip_fraction=a_token([report.clip_fraction for report in taken]),
        skipped=not taken,
        ess=a_token([report.ess for report in taken]),
        sequence_ess=a_token([report.sequence_ess for report in taken]),
        entropy=a_token([report.entropy for report in taken]),
        max_ratio=max((report.max_ratio for report in taken), default=1.0),
        behaviour_kl=a_token([report.behaviour_kl for report in taken]),
        mismatch=a_token([report.mismatch for report in taken]),
        reference_kl=a_token([report.reference_kl for report in taken]),
        importance_cap_fraction=a_token([report.importance_cap_fraction for report in taken]),
        lag=a_token([report.lag for report in taken]),
        max_lag=max((report.max_lag for report in taken), default=0),
    )
