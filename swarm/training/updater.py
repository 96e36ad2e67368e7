"""Policy-gradient updates on whole groups.

groups ── rows.py ──▶ rows ── behaviour.py: old log-probabilities ──▶ minibatches ──▶ an optimizer step each
                                                                         │ batching.py
                                                                         ▼
                   gradient, summed ◀── objective.py ◀── logprobs.py ◀── micro-batches
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from swarm.algorithms.advantages import ADVANTAGES
from swarm.errors import NonFiniteUpdates, PolicyError
from swarm.policy.batching import minibatches
from swarm.policy.config import UpdateSettings
from swarm.policy.loading import Policy
from swarm.policy.logprobs import Scorer, Scores, choose_batching
from swarm.policy.out_of_memory import TokenBudget
from swarm.sapo.mixing import MixSettings
from swarm.training.behaviour import needs_receiver, set_group_expectations, settle
from swarm.training.figures import StepTotals, merge, summarise
from swarm.training.layers import TrainingLayers
from swarm.training.objective import Objective
from swarm.training.reference import Reference
from swarm.training.rows import Row, RowReader
from swarm.training.schedules import learning_rate
from swarm.types import GradedGroup, UpdateReport

MICRO_BATCH_TOKENS = defaultdict(lambda: 16_384, cpu=1_024)
"""Tokens a forward pass where the configuration names none, by type of device."""
FUSED = ("cpu", "cuda")
"""Devices with a single kernel for the optimizer."""


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

        Raises `PolicyError`.
        """
        self.nonfinite_in_a_row = 0
        self.num_passed_over = 0
        """Versions that stand for no update."""
        self.ranks = policy.ranks
        self._policy = policy
        self._settings = settings
        self._temperature = temperature
        self._reader = RowReader(policy, mix, ADVANTAGES[settings.advantage])
        self._objective = Objective(settings)
        self._reference = Reference(policy, reference) if settings.reference_kl > 0 else None
        self._batching = choose_batching(policy, settings.batching)
        self._scorer = Scorer(policy, temperature, self._batching)
        self._layers = TrainingLayers(policy.model, settings.compile, settings.gradient_checkpointing)
        budget = settings.micro_batch_tokens or MICRO_BATCH_TOKENS[policy.device.type]
        self._budget = TokenBudget(budget, alone=policy.ranks.size == 1)
        if policy.dtype is torch.float16 and policy.ranks.size > 1:
            raise PolicyError("policy.dtype must not be float16 with several processes: use bfloat16")
        self._scaler = torch.amp.GradScaler(policy.device.type, enabled=policy.dtype is torch.float16)
        self.optimizer = torch.optim.AdamW(
            policy.trained,
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=policy.device.type in FUSED,
        )

    @property
    def version(self) -> int:
        """The policy's: one higher with each update."""
        return self._policy.version

    @version.setter
    def version(self, version: int) -> None:
        self._policy.version = version

    @property
    def num_updates(self) -> int:
        """Updates applied to the policy, which the learning rate goes by."""
        return self.version - self.num_passed_over

    def rise_to(self, version: int) -> None:
        """Give the policy a higher version without an update."""
        self.num_passed_over += version - self.version
        self.version = version

    @property
    def max_chars(self) -> int:
        """Characters of a completion beyond which the model cannot have positions for it."""
        return self._policy.max_positions * self._policy.longest_token_chars

    def fits(self, group: GradedGroup) -> bool:
        """Whether the model has positions for the prompt with each completion."""
        return self._reader.fits(group)

    def logprobs(self, groups: Sequence[GradedGroup]) -> list[list[list[float]]]:
        """What this policy gives to the tokens of other policies' completions, by group and completion."""
        rows = [self._reader.texts(group) for group in groups]
        with self._layers.active(), self._batching.attention(self._policy.model):
            for row, values in self._row_logprobs(self._scorer, [row for g in rows for row in g if row.completion]):
                row.receiver = values
        return [[list(row.receiver or ()) for row in each] for each in rows]

    def update(self, local: Sequence[GradedGroup], external: Sequence[GradedGroup]) -> UpdateReport:
        """One update on I local and J external groups. Raises `NonFiniteUpdates` after too many bad ones in a row."""
        groups = [self._reader.local(group, self.version) for group in local]
        groups += [self._reader.external(group) for group in external]
        groups = [rows for rows in groups if rows]
        if not groups:
            return UpdateReport(0.0, 0.0, 0, 0, 0.0, skipped=True)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = learning_rate(self._settings, self.num_updates)
        with self._layers.active(), self._batching.attention(self._policy.model), self._replaying():
            self._settle(groups)
            reports = [
                self._step(rows)
                for _ in range(self._settings.epochs)
                for rows in minibatches(groups, self._settings.minibatches)
            ]
        self.version += any(not report.skipped for report in reports)
        return summarise(reports)

    def _replaying(self) -> AbstractContextManager[None]:
        return self._policy.routers.replaying() if self._policy.routers is not None else nullcontext()

    def _settle(self, groups: Sequence[list[Row]]) -> None:
        """Everything about the rows that other log-probabilities than those of the step at hand decide."""
        rows = [row for group in groups for row in group]
        decoupled = self._settings.importance != "none"
        several_steps = self._settings.epochs * self._settings.minibatches > 1
        whole_groups = self._settings.objective == "gepo"
        wanted = [row for row in rows if needs_receiver(row, decoupled, several_steps, whole_groups)]
        for row, logprobs in self._row_logprobs(self._scorer, wanted):
            row.receiver = logprobs
        settle(rows, decoupled)
        if whole_groups:
            set_group_expectations(groups)
        if self._reference is not None:
            with self._reference.policy() as policy, self._batching.attention(policy.model):
                for row, logprobs in self._row_logprobs(Scorer(policy, self._temperature, self._batching), rows):
                    row.reference = logprobs

    def _row_logprobs(self, scorer: Scorer, rows: Sequence[Row]) -> list[tuple[Row, list[float]]]:
        return self._budget.attempt(lambda max_tokens: self._read_logprobs(scorer, rows, max_tokens), rows)

    @torch.no_grad()
    def _read_logprobs(self, scorer: Scorer, rows: Sequence[Row], max_tokens: int) -> list[tuple[Row, list[float]]]:
        """The rows with a policy's log-probabilities as they are now, each computed on one rank."""
        mine: list[tuple[int, list[float]]] = []
        places = {id(row): i for i, row in enumerate(rows)}
        for micro in self._micro_batches(rows, max_tokens):
            logprobs = self._score(scorer, micro).logprobs[: len(micro)].tolist()
            mine += [
                (places[id(row)], values[: len(row.completion)]) for row, values in zip(micro, logprobs, strict=True)
            ]
        return [(rows[i], values) for part in self.ranks.gather(mine) for i, values in part]

    def _step(self, rows: Sequence[Row]) -> UpdateReport:
        """One optimizer step."""
        totals, grad_norm = self._finite_gradient(rows)
        skipped = not (math.isfinite(totals.loss) and math.isfinite(grad_norm))
        if skipped:
            self._count_nonfinite()
        else:
            self.nonfinite_in_a_row = 0
            with self._policy.gate.change():
                self.optimizer.step()
        return totals.report(grad_norm, skipped)

    def _finite_gradient(self, rows: Sequence[Row]) -> tuple[StepTotals, float]:
        """The clipped gradient, its norm before; with float16 the loss is scaled down until nothing overflows."""
        while True:
            totals = self._budget.attempt(lambda max_tokens: self._gradient(rows, max_tokens), rows)
            self._scaler.unscale_(self.optimizer)
            grad_norm = self._clip()
            overflown = math.isfinite(totals.loss) and not math.isfinite(grad_norm) and self._scaler.get_scale() > 1
            self._scaler.update()
            if not overflown:
                return totals, grad_norm

    def _gradient(self, rows: Sequence[Row], max_tokens: int) -> StepTotals:
        """The gradient of the mean over all rows, accumulated over micro-batches."""
        self.optimizer.zero_grad(set_to_none=True)
        totals = StepTotals.of(rows)
        for micro in self._micro_batches(rows, max_tokens):
            self._accumulate(micro, totals)
        return merge(self.ranks.gather(totals))

    def _clip(self) -> float:
        """Scale the gradient down to the largest norm allowed; its norm before."""
        parameters = self._policy.trained
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = self.ranks.whole(torch.nn.utils.get_total_norm(gradients))
        torch.nn.utils.clip_grads_with_norm_(parameters, self._settings.max_grad_norm, norm)
        return float(norm)

    def _micro_batches(self, rows: Sequence[Row], max_tokens: int) -> list[list[Row]]:
        """This rank's share, then empty ones until every rank has had as many: each means a pass that all take."""
        mine = [rows[i] for i in self.ranks.share([row.length for row in rows])]
        batches = list(self._batching.cut(mine, max_tokens))
        return batches + [[] for _ in range(self.ranks.most(len(batches)) - len(batches))]

    def _score(self, scorer: Scorer, rows: Sequence[Row]) -> Scores:
        """An empty micro-batch gets the scores of a row of no consequence."""
        nothing = [self._policy.pad_id]
        return scorer(rows or [Row(nothing, nothing, 0.0, None)])

    def _accumulate(self, rows: list[Row], totals: StepTotals) -> None:
        """Add one micro-batch's share of the loss and its gradient: the sum over all is that of the whole batch."""
        scores = self._score(self._scorer, rows)
        if not rows:
            (scores.logprobs.sum() * 0.0).backward()  # type: ignore[no-untyped-call]
            return
        share = self._objective.share(scores, rows, totals.num_sequences, totals.num_tokens)
        self._scaler.scale(share.loss).backward()  # type: ignore[no-untyped-call]
        totals.add(share)

    def _count_nonfinite(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.nonfinite_in_a_row += 1
        if self.nonfinite_in_a_row >= self._settings.max_nonfinite_steps:
            raise NonFiniteUpdates(
                f"{self.nonfinite_in_a_row} steps in a row had a loss or gradient that was not finite; lower "
                f"update.learning_rate (now {self._settings.learning_rate:g}) and resume from the last checkpoint"
            )
