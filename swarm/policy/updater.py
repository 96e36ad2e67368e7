"""Policy-gradient updates on whole groups.

groups ── rows.py ──▶ rows ── behaviour.py: old log-probabilities ──▶ minibatches ──▶ an optimizer step each
                                                                         │ batching.py
                                                                         ▼
                    gradient, summed ◀── loss's share ◀── logprobs.py ◀── micro-batches
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from swarm.algorithms.advantages import ADVANTAGES
from swarm.algorithms.kl import cppo_kl
from swarm.algorithms.losses import LOSSES, Groups, LossConfig
from swarm.algorithms.losses.base import log_ratio
from swarm.errors import NonFiniteUpdates
from swarm.mixing import MixSettings
from swarm.policy.batching import minibatches
from swarm.policy.behaviour import bound_claims, freeze, set_group_expectations
from swarm.policy.config import UpdateSettings
from swarm.policy.figures import StepTotals, summarise
from swarm.policy.layers import TrainingLayers
from swarm.policy.loading import Policy
from swarm.policy.logprobs import Scorer, Scores, choose_batching
from swarm.policy.memory import TokenBudget
from swarm.policy.rows import Row, RowReader
from swarm.policy.schedules import learning_rate
from swarm.types import GradedGroup, UpdateReport

MICRO_BATCH_TOKENS = defaultdict(lambda: 16_384, cpu=1_024)
"""Tokens a forward pass where the configuration names none, by type of device."""
FUSED = ("cpu", "cuda")
"""Devices with a single kernel for the optimizer."""


class PolicyUpdater:
    """AdamW on one policy; what an update does is independent of how it is cut into micro-batches."""

    def __init__(self, policy: Policy, settings: UpdateSettings, mix: MixSettings, temperature: float) -> None:
        """Train `policy` with its log-probabilities taken at the sampling `temperature`."""
        self.version = 0
        self.nonfinite_in_a_row = 0
        self._policy = policy
        self._settings = settings
        self._reader = RowReader(policy, mix, ADVANTAGES[settings.advantage])
        self._loss = LOSSES[settings.objective]
        self._whole_groups = settings.objective == "gepo"
        self._loss_config = LossConfig(
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            max_completion_tokens=settings.max_completion_tokens,
            ratio_cap=settings.ratio_cap,
            group_epsilon=settings.group_epsilon,
        )
        self._batching = choose_batching(policy, settings.batching)
        self._scorer = Scorer(policy, temperature, self._batching)
        self._layers = TrainingLayers(policy.model, settings.compile, settings.gradient_checkpointing)
        self._budget = TokenBudget(settings.micro_batch_tokens or MICRO_BATCH_TOKENS[policy.device.type])
        self._scaler = torch.amp.GradScaler(policy.device.type, enabled=policy.dtype is torch.float16)
        self.optimizer = torch.optim.AdamW(
            policy.model.parameters(),
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=policy.device.type in FUSED,
        )

    def fits(self, group: GradedGroup) -> bool:
        """Whether the model has positions for the prompt with each completion."""
        return self._reader.longest(group) <= self._policy.max_positions

    def update(self, local: Sequence[GradedGroup], external: Sequence[GradedGroup]) -> UpdateReport:
        """One update on I local and J external groups. Raises `NonFiniteUpdates` after too many bad ones in a row."""
        groups = [self._reader.local(group) for group in local] + [self._reader.external(group) for group in external]
        groups = [rows for rows in groups if rows]
        if not groups:
            return UpdateReport(0.0, 0.0, 0, 0, 0.0, skipped=True)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = learning_rate(self._settings, self.version)
        with self._layers.active(), self._batching.attention(self._policy.model):
            self._settle_behaviour(groups)
            reports = [
                self._step(rows)
                for _ in range(self._settings.epochs)
                for rows in minibatches(groups, self._settings.minibatches)
            ]
        self.version += any(not report.skipped for report in reports)
        return summarise(reports)

    def _settle_behaviour(self, groups: Sequence[list[Row]]) -> None:
        """Set every `old` that this node's own log-probabilities decide, before the first step changes them."""
        rows = [row for group in groups for row in group]
        if self._whole_groups or self._settings.epochs * self._settings.minibatches > 1:
            freeze(
                self._own_logprobs(
                    [row for row in rows if row.old is None and (row.wants_receiver or self._whole_groups)]
                )
            )
        bound_claims(self._own_logprobs([row for row in rows if row.claimed]))
        if self._whole_groups:
            set_group_expectations(groups)

    def _own_logprobs(self, rows: Sequence[Row]) -> list[tuple[Row, list[float]]]:
        return self._budget.attempt(lambda max_tokens: self._read_logprobs(rows, max_tokens), rows)

    @torch.no_grad()
    def _read_logprobs(self, rows: Sequence[Row], max_tokens: int) -> list[tuple[Row, list[float]]]:
        return [
            (row, values[: len(row.completion)])
            for micro in self._batching.cut(rows, max_tokens)
            for row, values in zip(micro, self._scorer(micro).logprobs.tolist(), strict=True)
        ]

    def _step(self, rows: Sequence[Row]) -> UpdateReport:
        """One optimizer step."""
        totals, grad_norm = self._finite_gradient(rows)
        skipped = not (math.isfinite(totals.loss) and math.isfinite(grad_norm))
        if skipped:
            self._count_nonfinite()
        else:
            self.nonfinite_in_a_row = 0
            self.optimizer.step()
        return totals.report(grad_norm, skipped)

    def _finite_gradient(self, rows: Sequence[Row]) -> tuple[StepTotals, float]:
        """The clipped gradient, its norm before; with float16 the loss is scaled down until nothing overflows."""
        while True:
            totals = self._budget.attempt(lambda max_tokens: self._gradient(rows, max_tokens), rows)
            self._scaler.unscale_(self.optimizer)
            parameters = self._policy.model.parameters()
            grad_norm = float(torch.nn.utils.clip_grad_norm_(parameters, self._settings.max_grad_norm))
            overflown = math.isfinite(totals.loss) and not math.isfinite(grad_norm) and self._scaler.get_scale() > 1
            self._scaler.update()
            if not overflown:
                return totals, grad_norm

    def _gradient(self, rows: Sequence[Row], max_tokens: int) -> StepTotals:
        """The gradient of the mean over all rows, accumulated over micro-batches."""
        self.optimizer.zero_grad(set_to_none=True)
        totals = StepTotals(num_sequences=len(rows), num_tokens=sum(len(row.completion) for row in rows))
        for micro in self._batching.cut(rows, max_tokens):
            self._accumulate(micro, totals)
        return totals

    def _accumulate(self, rows: list[Row], totals: StepTotals) -> None:
        """Add one micro-batch's share of the loss and its gradient: the sum over all is that of the whole batch."""
        scores = self._scorer(rows)
        new, mask = scores.logprobs, scores.mask.to(scores.logprobs.dtype)  # [B, T]
        old = _old(rows, scores)
        advantages = torch.tensor([row.advantage for row in rows], device=new.device, dtype=new.dtype)  # [B]
        expectations = torch.tensor([row.log_expectation for row in rows], device=new.device, dtype=new.dtype)
        groups = Groups(torch.zeros(len(rows), device=new.device, dtype=torch.long), expectations)
        output = self._loss(new, old, advantages, mask, self._loss_config, groups)
        sequences_share = len(rows) / totals.num_sequences
        share = output.denominator / totals.num_tokens if output.per_token else sequences_share
        loss = output.loss * share
        if self._settings.behaviour_kl > 0:
            loss = loss + self._settings.behaviour_kl * sequences_share * cppo_kl(new, old, mask)
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        totals.add(loss, output.metrics["clipped"], log_ratio(new.detach(), old).exp(), scores)

    def _count_nonfinite(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.nonfinite_in_a_row += 1
        if self.nonfinite_in_a_row >= self._settings.max_nonfinite_steps:
            raise NonFiniteUpdates(
                f"{self.nonfinite_in_a_row} steps in a row had a loss or gradient that was not finite; lower "
                f"update.learning_rate (now {self._settings.learning_rate:g}) and resume from the last checkpoint"
            )


def _old(rows: Sequence[Row], scores: Scores) -> Tensor:
    """Old log-probabilities [B, T]; a row without them has the current ones."""
    current = scores.logprobs.detach()
    known = [row.old is not None for row in rows]
    values = [value for row in rows for value in row.old or ()]
    where = scores.mask & torch.tensor(known, device=current.device)[:, None]
    return current.masked_scatter(where, torch.tensor(values, device=current.device, dtype=current.dtype))
