"""The gradient of one optimizer step; rows arrive all at once or group by group.

add   ──▶ rows ──▶ micro-batches ──▶ gradient, as if there were no more rows
add   ──▶ ...                            │
close ──▶ gradient x (rows then / rows now) ──▶ its norm, clipped
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from swarm.algorithms.advantages import find_advantage, loss_of
from swarm.algorithms.importance import TREATMENTS
from swarm.algorithms.losses import (
    BEHAVIOUR_KL_ESTIMATORS,
    KL_ESTIMATORS,
    LossBatch,
    ess,
    k3,
    largest,
    log_ratio,
    token_mean,
    token_means,
)
from swarm.figures import LAG_MAX, LAG_MEAN, Figure, Figures, joined
from swarm.policy.attention import sent
from swarm.policy.batching import by_turn
from swarm.policy.loading import Policy
from swarm.policy.logprobs import Scores
from swarm.training.config import UpdateSettings
from swarm.training.forward import ForwardRunner
from swarm.training.rows import LOG_MAX_CLAIMED_RATIO, Row
from swarm.types import UpdateReport


class Objective:
    """A loss with its settings, importance weights and penalties as configured."""

    def __init__(self, settings: UpdateSettings) -> None:
        """The objective that `settings` names."""
        self._settings = settings
        self._treatment = TREATMENTS[settings.importance]
        self._estimate = KL_ESTIMATORS[settings.kl_estimator]
        self._behaviour_estimate = BEHAVIOUR_KL_ESTIMATORS[settings.behaviour_kl_estimator]

    @property
    def per_token(self) -> bool:
        """Whether the loss is divided by the step's number of tokens; otherwise by its number of rows."""
        return self._settings.loss.per_token

    def has_gradient(self, row: Row) -> bool:
        """Whether the row can change the policy: without advantages only its penalties can. A loss is linear in
        them."""
        if self._settings.has_penalty:
            return True
        rewarded = any(row.turn_advantages) or row.advantage != 0
        return any(row.added) or (rewarded and (not row.token_factors or any(row.token_factors)))

    def share(self, scores: Scores, rows: Sequence[Row], num_sequences: int, num_tokens: int) -> tuple[Tensor, Figures]:
        """The loss (scalar) and the figures of B `rows` in a step of `num_sequences` rows and `num_tokens` tokens.

        Sums over micro-batches do not depend on how the batch is split, and neither does the gradient.
        `scores` are those of the trained policy for the rows' tokens, with gradient.
        """
        new, mask = scores.logprobs, scores.mask.to(scores.logprobs.dtype)  # [B, T]
        current = new.detach()
        old = _bounded(_filled(current, [row.old for row in rows], scores.mask), current, rows)
        behaviour = _bounded(_filled(old, [row.behaviour for row in rows], scores.mask), current, rows)
        reference = _filled(current, [row.reference for row in rows], scores.mask)
        bounds = self._settings.importance_cap, self._settings.importance_floor
        weights, capped = self._treatment(old, behaviour, mask, *bounds)
        advantages = _advantages(rows, new) * weights  # [B, T]
        expectation = _column([row.log_expectation for row in rows], new)[:, 0]
        variance = _column([row.variance for row in rows], new)[:, 0]
        batch = LossBatch(new, old, advantages, mask, expectation, variance)
        output = loss_of(self._settings.objective, self._settings.loss, batch)
        sequences = len(rows) / num_sequences
        share = sum(len(row.completion) for row in rows) / num_tokens if self.per_token else sequences
        loss = output.loss * share
        if self._settings.behaviour_kl > 0:
            divergence = token_means(self._behaviour_estimate(new, behaviour), mask).mean()
            loss = loss + self._settings.behaviour_kl * sequences * divergence
        if self._settings.reference_kl > 0:
            loss = loss + self._settings.reference_kl * share * (self._estimate(new, reference) * output.shares).sum()
        figures = {
            **output.figures,
            **_distances(current, behaviour, mask, rows),
            **_ages(rows),
            "entropy": token_mean(scores.entropies, mask),
            "sampling/importance_capped_ratio": token_mean(capped, mask),
        }
        if self._settings.reference_kl > 0:
            figures["kl"] = token_mean(k3(current, reference), mask)
        return loss, figures


def check_own_code(settings: UpdateSettings, group_size: int) -> None:
    """Try the loss and the advantage on two completions of a made-up group, before anything is loaded.

    Raises `ConfigError` for the user's own that fails, or returns what no update could use.
    """
    rewards = torch.tensor([[float(index % 2) for index in range(group_size)]], dtype=torch.float64)
    find_advantage(settings.advantage)(rewards)
    new = torch.full((2, 3), -1.0, requires_grad=True)
    known = torch.zeros(2)
    batch = LossBatch(new, new.detach(), torch.tensor([[1.0], [-1.0]]), torch.ones(2, 3), known, known)
    loss_of(settings.objective, settings.loss, batch)


def _advantages(rows: Sequence[Row], like: Tensor) -> Tensor:
    """[B, T] or, where all rows have one for all their tokens, [B, 1]."""
    column = _column([row.advantage for row in rows], like)
    if not any(row.turn_advantages or row.token_factors or row.added for row in rows):
        return column
    advantages = column.repeat(1, like.shape[1])
    for index, row in enumerate(rows):
        if row.turn_advantages:
            for advantage, turn in zip(row.turn_advantages, by_turn(row), strict=True):
                advantages[index, turn] = advantage
        if row.token_factors:
            advantages[index, : len(row.token_factors)] *= like.new_tensor(row.token_factors)
        if row.added:
            advantages[index, : len(row.added)] += like.new_tensor(row.added)
    return advantages


def _distances(current: Tensor, behaviour: Tensor, mask: Tensor, rows: Sequence[Row]) -> dict[str, Figure]:
    """Distance between the sampling policy and the trained one, over rows whose sampler's log-probabilities are
    known."""
    known = _column([row.behaviour is not None for row in rows], mask)
    own = mask * _column([not row.external for row in rows], mask)
    claimed = mask * known
    ratios = log_ratio(current, behaviour).exp()
    sequence_ratios = log_ratio((current * mask).sum(-1), (behaviour * mask).sum(-1)).exp()
    return {
        # Over sampled tokens: this direction has the smaller variance.
        "sampling/behaviour_kl": token_mean(k3(behaviour, current), claimed),
        "sampling/sampling_logp_difference/mean": token_mean((current - behaviour).abs(), own),
        "sampling/importance_sampling_ratio/max": largest(ratios * claimed),
        "sampling/ess": ess(ratios, claimed),
        "sampling/sequence_ess": ess(sequence_ratios, known[:, 0]),
    }


def _ages(rows: Sequence[Row]) -> dict[str, Figure]:
    """Updates since own tokens were sampled: staleness."""
    lags = [part for row in rows for part in row.lags]
    return {
        LAG_MEAN: Figure("token_mean", sum(lag * tokens for lag, tokens in lags), sum(tokens for _, tokens in lags)),
        LAG_MAX: Figure("max", max((lag for lag, _ in lags), default=0)),
    }


def _bounded(logprobs: Tensor, current: Tensor, rows: Sequence[Row]) -> Tensor:
    """Workers' claimed log-probabilities, with the ratio bounded on both sides."""
    if not any(row.claimed for row in rows):
        return logprobs
    claimed = _column([row.claimed for row in rows], current).bool()
    bounded = logprobs.clamp(current - LOG_MAX_CLAIMED_RATIO, current + LOG_MAX_CLAIMED_RATIO)
    return torch.where(claimed, bounded, logprobs)


def _filled(otherwise: Tensor, rows: Sequence[Sequence[float] | None], mask: Tensor) -> Tensor:
    """Log-probabilities [B, T] of `rows`; `otherwise` [B, T] fills rows without any and positions beyond a row's
    end."""
    if all(row is None for row in rows):
        return otherwise
    known = _column([row is not None for row in rows], mask)
    values = torch.tensor([value for row in rows for value in row or ()], dtype=otherwise.dtype)
    return otherwise.masked_scatter(mask & known, sent(values, mask.device))


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return sent(torch.tensor(values, dtype=like.dtype), like.device)[:, None]


class GradientAccumulator:
    """Sums the gradients of micro-batches; the sum does not depend on how the batch is split."""

    def __init__(
        self,
        policy: Policy,
        runner: ForwardRunner,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        max_grad_norm: float,
    ) -> None:
        """An empty gradient for the parameters of `optimizer`, the trained ones of `policy`."""
        self._policy = policy
        self._runner = runner
        self._objective = objective
        self._optimizer = optimizer
        self._max_grad_norm = max_grad_norm
        self._scaler = torch.amp.GradScaler(policy.device.type, enabled=policy.dtype is torch.float16)
        self._rows: list[Row] = []
        self._num_done: int | None = None
        """Number of leading rows already in the gradient; None when it must be recomputed."""
        self._totals = StepTotals()

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows to the gradient; `ForwardRunner.training` must be active. Raises `OutOfMemory`."""
        self._rows += rows
        self._runner.attempt(self._extend, self._rows)

    def close(self) -> tuple[StepTotals, float]:
        """The figures of all rows, and the gradient's norm before clipping.

        With float16 the loss is scaled down until nothing overflows. `ForwardRunner.training` must be active.
        """
        while True:
            totals = self._whole(merge(self._policy.ranks.gather(self._totals)))
            grad_norm = self._clip()
            overflown = math.isfinite(totals.loss) and not math.isfinite(grad_norm) and self._scaler.get_scale() > 1
            self._scaler.update()
            if not overflown:
                return totals, grad_norm
            self._num_done = None
            self._runner.attempt(self._extend, self._rows)

    def clear(self) -> None:
        """Discard the rows and their gradient."""
        self._rows, self._num_done = [], None
        self._optimizer.zero_grad(set_to_none=True)

    def _extend(self, max_tokens: int) -> None:
        """Add the missing rows to the gradient; all of them again after memory ran out."""
        if self._num_done is None:
            self._optimizer.zero_grad(set_to_none=True)
            self._num_done, self._totals = 0, StepTotals.of(self._rows)
        fresh, self._num_done = self._rows[self._num_done :], None
        # Others' wrong answers mostly count for nothing: they are in the means, and in no pass.
        fresh = list(filter(self._objective.has_gradient, fresh)) or fresh[:1]
        before: tuple[Tensor, Figures] | None = None
        for micro in self._runner.micro_batches(fresh, max_tokens):
            done = self._backward(micro)
            self._count(before)  # a GPU has the next pass to compute while it is waited for
            before = done
        self._count(before)
        self._num_done = len(self._rows)

    def _backward(self, rows: list[Row]) -> tuple[Tensor, Figures] | None:
        """Add one micro-batch's gradient; returns its share of the loss, and the figures."""
        scores = self._runner.scores(rows)
        if not rows:
            (scores.logprobs.sum() * 0.0).backward()  # type: ignore[no-untyped-call]
            return None
        loss, figures = self._objective.share(scores, rows, self._totals.num_sequences, self._totals.num_tokens)
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach(), figures

    def _count(self, done: tuple[Tensor, Figures] | None) -> None:
        if done is not None:
            loss, figures = done
            self._totals.add(float(loss), figures)

    def _whole(self, totals: StepTotals) -> StepTotals:
        """Rescale the gradient and its figures to the final number of rows."""
        self._scaler.unscale_(self._optimizer)
        totals, scale = totals.rescaled(self._rows, self._objective.per_token)
        if scale != 1:
            for parameter in self._policy.trained:
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)
        return totals

    def _clip(self) -> float:
        """Clip the gradient to the maximum norm; returns the norm before."""
        parameters = self._policy.trained
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = self._policy.ranks.whole(torch.nn.utils.get_total_norm(gradients))
        torch.nn.utils.clip_grads_with_norm_(parameters, self._max_grad_norm, norm)
        return float(norm)


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
