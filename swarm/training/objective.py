"""What the objective and its penalties make of the log-probabilities of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swarm.algorithms.importance import TREATMENTS
from swarm.algorithms.kl import KL_ESTIMATORS, cppo_kl, k3
from swarm.algorithms.losses import LOSSES, Groups, LossConfig
from swarm.algorithms.losses.base import log_ratio
from swarm.policy.config import UpdateSettings
from swarm.policy.logprobs import Scores
from swarm.training.behaviour import LOG_MAX_CLAIMED_RATIO
from swarm.training.rows import Row


@dataclass(frozen=True)
class Share:
    """One micro-batch's share of a step. Sums over micro-batches are those of the whole batch, however it is cut."""

    loss: Tensor
    """Scalar; the gradient of the sum is the step's."""
    clipped: Tensor
    """Tokens on which a clip or cap of the objective decided."""
    capped: Tensor
    """Tokens whose importance weight was truncated or masked."""
    behaviour_kl: Tensor
    """Divergence of the behaviour policy from the trained one, summed over tokens."""
    mismatch: Tensor
    """|Log-probability - the engine's|, summed over own tokens."""
    reference_kl: Tensor
    """Divergence from the reference policy, summed over tokens; 0 without one."""
    entropy: Tensor
    """Of the distributions that the tokens were taken from, summed over tokens."""
    ratios: Tensor
    """[N] ratios to the behaviour policy of the N tokens."""
    sequence_ratios: Tensor
    """[B] of whole completions: the product over their tokens."""
    per_token: bool
    """Whether the step's number of tokens divides the loss, or else that of its rows."""


class Objective:
    """A loss by name, with importance weights and penalties as configured."""

    def __init__(self, settings: UpdateSettings) -> None:
        """The objective that `settings` name."""
        self._settings = settings
        self._loss = LOSSES[settings.objective]
        self._treatment = TREATMENTS[settings.importance]
        self._estimate = KL_ESTIMATORS[settings.kl_estimator]
        self._config = LossConfig(
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            max_completion_tokens=settings.max_completion_tokens,
            ratio_cap=settings.ratio_cap,
            group_epsilon=settings.group_epsilon,
            group_clip=settings.group_clip,
        )

    def share(self, scores: Scores, rows: Sequence[Row], num_sequences: int, num_tokens: int) -> Share:
        """The share of B `rows` in a step of `num_sequences` rows and `num_tokens` completion tokens.

        `scores` are what the policy that is trained gives to the rows' tokens, with gradient.
        """
        new, mask = scores.logprobs, scores.mask.to(scores.logprobs.dtype)  # [B, T]
        current = new.detach()
        old = _bounded(_filled(current, [row.old for row in rows], scores.mask), current, rows)
        behaviour = _bounded(_filled(old, [row.behaviour for row in rows], scores.mask), current, rows)
        weights, capped = self._treatment(old, behaviour, mask, self._settings.importance_cap)
        advantages = _column([row.advantage for row in rows], new) * weights  # [B, T]
        groups = Groups(
            ids=torch.zeros(len(rows), device=new.device, dtype=torch.long),
            log_expectation=_column([row.log_expectation for row in rows], new)[:, 0],
        )
        output = self._loss(new, old, advantages, mask, self._config, groups)
        sequences = len(rows) / num_sequences
        share = output.denominator / num_tokens if output.per_token else sequences
        loss = output.loss * share
        if self._settings.behaviour_kl > 0:
            loss = loss + self._settings.behaviour_kl * sequences * cppo_kl(new, behaviour, mask)
        reference = _filled(current, [row.reference for row in rows], scores.mask)
        if self._settings.reference_kl > 0:
            loss = loss + self._settings.reference_kl * share * (self._estimate(new, reference) * output.shares).sum()
        return Share(
            loss=loss,
            clipped=output.metrics["clipped"],
            capped=(capped * mask).sum(),
            behaviour_kl=(k3(behaviour, current) * mask).sum(),  # its tokens: this way round the mean has small spread
            mismatch=((current - behaviour).abs() * mask * _column([not row.external for row in rows], new)).sum(),
            reference_kl=(k3(current, reference) * mask).sum(),
            entropy=scores.entropies.sum(),
            ratios=log_ratio(current, behaviour).exp()[scores.mask],
            sequence_ratios=log_ratio((current * mask).sum(-1), (behaviour * mask).sum(-1)).exp(),
            per_token=output.per_token,
        )


def _bounded(logprobs: Tensor, current: Tensor, rows: Sequence[Row]) -> Tensor:
    """What followers claim, believed as far as the ratio stays bounded."""
    claimed = torch.tensor([row.claimed for row in rows], device=current.device)[:, None]
    return torch.where(claimed, logprobs.maximum(current - LOG_MAX_CLAIMED_RATIO), logprobs)


def _filled(otherwise: Tensor, rows: Sequence[Sequence[float] | None], mask: Tensor) -> Tensor:
    """Log-probabilities [B, T] of `rows`; `otherwise` [B, T] stands where a row has none and beyond a row's end."""
    known = torch.tensor([row is not None for row in rows], device=mask.device)
    values = torch.tensor([value for row in rows for value in row or ()], device=mask.device, dtype=otherwise.dtype)
    return otherwise.masked_scatter(mask & known[:, None], values)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, device=like.device, dtype=like.dtype)[:, None]
