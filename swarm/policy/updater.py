"""Policy-gradient updates on whole groups.

groups ── rows.py ──▶ rows ── behaviour.py: old log-probabilities ──▶ minibatches ──▶ an optimizer step each
                                                                         │ batching.py
                                                                         ▼
                    gradient, summed ◀── loss's share ◀── logprobs.py ◀── micro-batches
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from swarm.algorithms.advantages import ADVANTAGES
from swarm.algorithms.kl import cppo_kl
from swarm.algorithms.losses import LOSSES, Groups, LossConfig
from swarm.algorithms.losses.base import log_ratio
from swarm.errors import NonFiniteUpdates
from swarm.mixing import MixSettings
from swarm.policy.batching import micro_batches, minibatches
from swarm.policy.behaviour import bound_claims, freeze, set_group_expectations
from swarm.policy.config import UpdateSettings
from swarm.policy.figures import StepTotals, merge, summarise
from swarm.policy.loading import Policy
from swarm.policy.logprobs import completion_logprobs, pad
from swarm.policy.rows import Row, RowReader
from swarm.policy.schedules import learning_rate
from swarm.types import GradedGroup, UpdateReport


class PolicyUpdater:
    """AdamW on one policy; what an update does is independent of how it is cut into micro-batches."""

    def __init__(self, policy: Policy, settings: UpdateSettings, mix: MixSettings, temperature: float) -> None:
        """Train `policy` with its log-probabilities taken at the sampling `temperature`."""
        self.version = 0
        self.nonfinite_in_a_row = 0
        self.ranks = policy.ranks
        self._policy = policy
        self._settings = settings
        self._temperature = temperature
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
        self.optimizer = torch.optim.AdamW(
            policy.trained,
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
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
        self._settle_behaviour(groups)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = learning_rate(self._settings, self.version)
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

    @torch.no_grad()
    def _own_logprobs(self, rows: Sequence[Row]) -> Iterator[tuple[Row, list[float]]]:
        """The rows with their log-probabilities as they are now, each computed on one rank."""
        computed: dict[int, list[float]] = {}
        for micro in self._paced(rows):
            for row, values in zip(micro, self._logprobs(micro).tolist(), strict=True):
                computed[id(row)] = values[: len(row.completion)]
        mine = {i: computed[id(row)] for i, row in enumerate(rows) if id(row) in computed}
        for part in self.ranks.gather(mine):
            for i, values in part.items():
                yield rows[i], values

    def _paced(self, rows: Sequence[Row]) -> list[list[Row]]:
        """Micro-batches of this rank's share, then empty ones until every rank has had as many."""
        mine = [rows[i] for i in self.ranks.share([row.length for row in rows])]
        batches = list(micro_batches(mine, self._settings.micro_batch_tokens))
        return batches + [[] for _ in range(self.ranks.most(len(batches)) - len(batches))]

    def _step(self, rows: Sequence[Row]) -> UpdateReport:
        """One optimizer step, gradients accumulated over micro-batches."""
        self.optimizer.zero_grad(set_to_none=True)
        totals = StepTotals(num_sequences=len(rows), num_tokens=sum(len(row.completion) for row in rows))
        for micro in self._paced(rows):
            self._accumulate(micro, totals)
        totals = merge(self.ranks.gather(totals))
        grad_norm = self._clip()
        skipped = not (math.isfinite(totals.loss) and math.isfinite(grad_norm))
        if skipped:
            self._count_nonfinite()
        else:
            self.nonfinite_in_a_row = 0
            self.optimizer.step()
        return totals.report(grad_norm, skipped)

    def _accumulate(self, rows: list[Row], totals: StepTotals) -> None:
        """Add one micro-batch's share of the loss and its gradient: the sum over all is that of the whole batch."""
        new = self._logprobs(rows)  # [B, T]
        if not rows:
            new.sum().backward()  # type: ignore[no-untyped-call]
            return
        old, mask = _pad_old(rows, new)
        advantages = torch.tensor([row.advantage for row in rows], device=new.device, dtype=new.dtype)  # [B]
        expectations = torch.tensor([row.log_expectation for row in rows], device=new.device, dtype=new.dtype)
        groups = Groups(torch.zeros(len(rows), device=new.device, dtype=torch.long), expectations)
        output = self._loss(new, old, advantages, mask, self._loss_config, groups)
        sequences_share = len(rows) / totals.num_sequences
        share = output.denominator / totals.num_tokens if output.per_token else sequences_share
        loss = output.loss * share
        if self._settings.behaviour_kl > 0:
            loss = loss + self._settings.behaviour_kl * sequences_share * cppo_kl(new, old, mask)
        loss.backward()  # type: ignore[no-untyped-call]
        totals.add(loss, output.metrics["clipped"], log_ratio(new.detach(), old).exp(), mask)

    def _logprobs(self, rows: Sequence[Row]) -> Tensor:
        """[B, T]; without rows a pass all the same, which other ranks need: [0, 1]."""
        prompts = [row.prompt for row in rows] or [[self._policy.pad_id]]
        completions = [row.completion for row in rows] or [[self._policy.pad_id]]
        logprobs = self.ranks.forward(
            lambda: completion_logprobs(self._policy, prompts, completions, self._temperature)
        )
        return logprobs[: len(rows)]

    def _clip(self) -> float:
        """Scale the gradient down to the largest norm allowed; its norm before."""
        parameters = self._policy.trained
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = self.ranks.whole(torch.nn.utils.get_total_norm(gradients))
        torch.nn.utils.clip_grads_with_norm_(parameters, self._settings.max_grad_norm, norm)
        return float(norm)

    def _count_nonfinite(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.nonfinite_in_a_row += 1
        if self.nonfinite_in_a_row >= self._settings.max_nonfinite_steps:
            raise NonFiniteUpdates(
                f"{self.nonfinite_in_a_row} steps in a row had a loss or gradient that was not finite; lower "
                f"update.learning_rate (now {self._settings.learning_rate:g}) and resume from the last checkpoint"
            )


def _pad_old(rows: Sequence[Row], new: Tensor) -> tuple[Tensor, Tensor]:
    """Old log-probabilities and mask, both [B, T] like `new`; a row without them has the current ones."""
    _, mask = pad([row.completion for row in rows], 0)
    old = new.detach().clone()
    for i, row in enumerate(rows):
        if row.old is not None:
            old[i, : len(row.old)] = torch.tensor(row.old, device=new.device)
    return old, mask.to(new.device)
