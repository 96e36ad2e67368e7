"""Policy-gradient updates on whole groups.

groups ── rows.py ──▶ rows ── behaviour.py: old log-probabilities ──▶ minibatches ──▶ an optimizer step each
                                                                         │ batching.py
                                                                         ▼
                   gradient, summed ◀── objective.py ◀── logprobs.py ◀── micro-batches
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from swarm.algorithms.advantages import ADVANTAGES
from swarm.errors import NonFiniteUpdates
from swarm.mixing import MixSettings
from swarm.policy.batching import micro_batches, minibatches
from swarm.policy.behaviour import needs_receiver, set_group_expectations, settle
from swarm.policy.config import UpdateSettings
from swarm.policy.figures import StepTotals, summarise
from swarm.policy.loading import Policy
from swarm.policy.logprobs import completion_logprobs
from swarm.policy.objective import Objective
from swarm.policy.reference import Reference
from swarm.policy.rows import Row, RowReader
from swarm.policy.schedules import learning_rate
from swarm.types import GradedGroup, UpdateReport


class PolicyUpdater:
    """AdamW on one policy; what an update does is independent of how it is cut into micro-batches."""

    def __init__(
        self,
        policy: Policy,
        settings: UpdateSettings,
        mix: MixSettings,
        temperature: float,
        reference: Policy | None = None,
    ) -> None:
        """Train `policy` with its log-probabilities taken at the sampling `temperature`.

        `reference` is the policy as it was loaded first, for `update.reference_kl`; with adapters it is not needed.
        """
        self.version = 0
        self.nonfinite_in_a_row = 0
        self._policy = policy
        self._settings = settings
        self._temperature = temperature
        self._reader = RowReader(policy, mix, ADVANTAGES[settings.advantage])
        self._objective = Objective(settings)
        self._reference = Reference(policy, reference) if settings.reference_kl > 0 else None
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
        groups = [self._reader.local(group, self.version) for group in local]
        groups += [self._reader.external(group) for group in external]
        groups = [rows for rows in groups if rows]
        if not groups:
            return UpdateReport(0.0, 0.0, 0, 0, 0.0, skipped=True)
        self._settle(groups)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = learning_rate(self._settings, self.version)
        reports = [
            self._step(rows)
            for _ in range(self._settings.epochs)
            for rows in minibatches(groups, self._settings.minibatches)
        ]
        self.version += any(not report.skipped for report in reports)
        return summarise(reports)

    def _settle(self, groups: Sequence[list[Row]]) -> None:
        """Everything about the rows that other log-probabilities than those of the step at hand decide."""
        rows = [row for group in groups for row in group]
        decoupled = self._settings.importance != "none"
        several_steps = self._settings.epochs * self._settings.minibatches > 1
        whole_groups = self._settings.objective == "gepo"
        wanted = [row for row in rows if needs_receiver(row, decoupled, several_steps, whole_groups)]
        for row, logprobs in self._row_logprobs(self._policy, wanted):
            row.receiver = logprobs
        settle(rows, decoupled)
        if whole_groups:
            set_group_expectations(groups)
        if self._reference is not None:
            with self._reference.policy() as reference:
                for row, logprobs in self._row_logprobs(reference, rows):
                    row.reference = logprobs

    @torch.no_grad()
    def _row_logprobs(self, policy: Policy, rows: Sequence[Row]) -> Iterator[tuple[Row, list[float]]]:
        for micro in micro_batches(rows, self._settings.micro_batch_tokens):
            for row, values in zip(micro, self._logprobs(policy, micro).tolist(), strict=True):
                yield row, values[: len(row.completion)]

    def _step(self, rows: Sequence[Row]) -> UpdateReport:
        """One optimizer step, gradients accumulated over micro-batches."""
        self.optimizer.zero_grad(set_to_none=True)
        totals = StepTotals.of(rows)
        for micro in micro_batches(rows, self._settings.micro_batch_tokens):
            self._accumulate(micro, totals)
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self._policy.model.parameters(), self._settings.max_grad_norm))
        skipped = not (math.isfinite(totals.loss) and math.isfinite(grad_norm))
        if skipped:
            self._count_nonfinite()
        else:
            self.nonfinite_in_a_row = 0
            self.optimizer.step()
        return totals.report(grad_norm, skipped)

    def _accumulate(self, rows: list[Row], totals: StepTotals) -> None:
        """Add one micro-batch's share of the loss and its gradient: the sum over all is that of the whole batch."""
        new = self._logprobs(self._policy, rows)  # [B, T]
        share = self._objective.share(new, rows, totals.num_sequences, totals.num_tokens)
        share.loss.backward()  # type: ignore[no-untyped-call]
        totals.add(share)

    def _logprobs(self, policy: Policy, rows: Sequence[Row]) -> Tensor:
        return completion_logprobs(
            policy, [row.prompt for row in rows], [row.completion for row in rows], self._temperature
        )

    def _count_nonfinite(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.nonfinite_in_a_row += 1
        if self.nonfinite_in_a_row >= self._settings.max_nonfinite_steps:
            raise NonFiniteUpdates(
                f"{self.nonfinite_in_a_row} steps in a row had a loss or gradient that was not finite; lower "
                f"update.learning_rate (now {self._settings.learning_rate:g}) and resume from the last checkpoint"
            )
