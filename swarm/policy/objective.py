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
from swarm.policy.logprobs import pad
from swarm.policy.rows import Row


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
    """Divergence from the behaviour policy, summed over tokens."""
    reference_kl: Tensor
    """Divergence from the reference policy, summed over tokens; 0 without one."""
    ratios: Tensor
    """[N] ratios to the behaviour policy of the N tokens."""


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
        )

    def share(self, new: Tensor, rows: Sequence[Row], num_sequences: int, num_tokens: int) -> Share:
        """The share of B `rows` in a step of `num_sequences` rows and `num_tokens` completion tokens.

        `new` [B, T] are the rows' log-probabilities under the policy that is trained, with gradient, 0 beyond a
        completion's end.
        """
        _, lengths = pad([row.completion for row in rows], 0)
        mask = lengths.to(new.device)  # [B, T]
        current = new.detach()
        old = _padded([row.old for row in rows], current)
        behaviour = _padded([row.behaviour for row in rows], old)
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
        reference = _padded([row.reference for row in rows], current)
        if self._settings.reference_kl > 0:
            loss = loss + self._settings.reference_kl * share * (self._estimate(new, reference) * output.shares).sum()
        return Share(
            loss=loss,
            clipped=output.metrics["clipped"],
            capped=(capped * mask).sum(),
            behaviour_kl=(k3(current, behaviour) * mask).sum(),
            reference_kl=(k3(current, reference) * mask).sum(),
            ratios=log_ratio(current, behaviour).exp()[mask.bool()],
        )


def _padded(rows: Sequence[Sequence[float] | None], otherwise: Tensor) -> Tensor:
    """Log-probabilities [B, T] like `otherwise`, which stands where a row has none and beyond a row's end."""
    padded = otherwise.clone()
    for i, row in enumerate(rows):
        if row is not None:
            padded[i, : len(row)] = torch.tensor(row, device=padded.device, dtype=padded.dtype)
    return padded


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, device=like.device, dtype=like.dtype)[:, None]
