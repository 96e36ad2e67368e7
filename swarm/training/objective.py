"""The objective and its penalties on a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from swarm.algorithms.custom import find_advantage, loss_of
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
from swarm.figures import LAG_MAX, LAG_MEAN, Figure, Figures
from swarm.policy.attention import sent
from swarm.policy.batching import by_turn
from swarm.policy.logprobs import Scores
from swarm.training.config import UpdateSettings
from swarm.training.rows import LOG_MAX_CLAIMED_RATIO, Row


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
        weights, capped = self._treatment(old, behaviour, mask, self._settings.importance_cap)
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
    if not any(row.turn_advantages or row.token_factors for row in rows):
        return column
    advantages = column.repeat(1, like.shape[1])
    for index, row in enumerate(rows):
        if row.turn_advantages:
            for advantage, turn in zip(row.turn_advantages, by_turn(row), strict=True):
                advantages[index, turn] = advantage
        if row.token_factors:
            advantages[index, : len(row.token_factors)] *= like.new_tensor(row.token_factors)
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
