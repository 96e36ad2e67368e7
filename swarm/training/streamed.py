"""An update whose groups come one after the other: the gradient grows meanwhile, the step waits for all of them.

accumulate ──▶ rows ──▶ micro-batches ──▶ gradient, as if there were no more rows
accumulate ──▶ ...                            │
apply      ──▶ gradient x (rows then / rows now) ──▶ clipped ──▶ one optimizer step
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from swarm.errors import PolicyError
from swarm.policy.config import UpdateSettings
from swarm.policy.loading import Policy
from swarm.policy.snapshot import Precision, pack
from swarm.policy.weights import whole_weights
from swarm.reasons import Reason
from swarm.sapo.mixing import MixSettings
from swarm.training.figures import StepTotals, merge, summarise
from swarm.training.rows import Row
from swarm.training.schedules import learning_rate
from swarm.training.updater import PolicyUpdater
from swarm.types import GradedGroup, UpdateReport


class StreamedUpdater(PolicyUpdater):
    """Updates of one optimizer step on groups that followers sampled with this policy's snapshots."""

    def __init__(
        self,
        policy: Policy,
        settings: UpdateSettings,
        mix: MixSettings,
        temperature: float,
        reference: Policy | None = None,
        precision: Precision = "native",
    ) -> None:
        """As `PolicyUpdater`; `precision` is that of `snapshot`. Raises `PolicyError`."""
        super().__init__(policy, settings, mix, temperature, reference)
        if settings.epochs * settings.minibatches > 1:
            raise PolicyError(
                "a learner takes one optimizer step an update: set update.epochs and update.minibatches to 1, got "
                f"{settings.epochs} and {settings.minibatches}"
            )
        self._precision = precision
        self._rows: list[Row] = []
        """Of the open update."""
        self._num_done: int | None = None
        """Of them the first so many are in the gradient; None when it has to be begun."""
        self._totals = StepTotals(0, 0)

    def refusal(self, group: GradedGroup) -> Reason | None:
        """Why this policy cannot have sampled the group as it says. See `StreamingUpdater`."""
        if group.group.policy.tokenizer_hash != self._policy.tokenizer_hash:
            return Reason.OTHER_POLICY
        if group.group.sampling.temperature != self._temperature:
            return Reason.OTHER_SAMPLING
        if any(not (c.token_ids and c.logprobs) for c in group.group.completions):
            return Reason.NO_TOKENS
        if any(self._policy.hides(completion.token_ids) for completion in group.group.completions):
            return Reason.HIDDEN_TOKENS
        if not all(self._reader.same_tokens(completion) for completion in group.group.completions):
            return Reason.WRONG_TOKENS
        return None if self.fits(group) else Reason.TOO_LONG

    def accumulate(self, groups: Sequence[GradedGroup]) -> None:
        """Add the gradient of further groups. Raises `PolicyError` for an objective that cannot be streamed."""
        fresh = [rows for group in groups if (rows := self._reader.local(group, self.version))]
        if not fresh:
            return
        for row in (row for rows in fresh for row in rows):
            row.claimed = True
        with self._layers.active(), self._batching.attention(self._policy.model):
            self._settle(fresh)
            self._rows += [row for rows in fresh for row in rows]
            self._budget.attempt(self._extend, self._rows)

    def apply(self) -> UpdateReport:
        """Take the step that `accumulate` has gathered the gradient of. Raises `NonFiniteUpdates`."""
        if not self._rows:
            return UpdateReport(0.0, 0.0, 0, 0, 0.0, skipped=True)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = learning_rate(self._settings, self.num_updates)
        self._scaler.unscale_(self.optimizer)
        totals = self._whole(merge(self.ranks.gather(self._totals)))
        grad_norm = self._clip()
        self._scaler.update()
        skipped = not (math.isfinite(totals.loss) and math.isfinite(grad_norm))
        if skipped:
            self._count_nonfinite()
        else:
            self.nonfinite_in_a_row = 0
            with self._policy.gate.change():
                self.optimizer.step()
            self.version += 1
        self.abandon()
        return summarise([totals.report(grad_norm, skipped)])

    def abandon(self) -> None:
        """Forget the update that is open."""
        self._rows, self._num_done = [], None
        self.optimizer.zero_grad(set_to_none=True)

    def snapshot(self) -> bytes:
        """The policy as it is now, packed; empty on ranks that do not lead."""
        weights = whole_weights(self._policy)
        return pack(weights, self._precision) if self.ranks.rank == 0 else b""

    def _extend(self, max_tokens: int) -> None:
        """Put the rows that are not there yet into the gradient; all of them again after memory ran out."""
        if self._num_done is None:
            self.optimizer.zero_grad(set_to_none=True)
            self._num_done, self._totals = 0, StepTotals.of(self._rows)
        fresh, self._num_done = self._rows[self._num_done :], None
        for micro in self._micro_batches(fresh, max_tokens):
            self._accumulate(micro, self._totals)
        self._num_done = len(self._rows)
        if self._totals.per_token and self._settings.behaviour_kl > 0:
            raise PolicyError(
                f"a learner cannot use update.behaviour_kl with objective {self._settings.objective}, whose loss is "
                "divided by a number of tokens that is known only in the end: set it to 0"
            )

    def _whole(self, totals: StepTotals) -> StepTotals:
        """The gradient and its figures as if all rows had been known when the first of them came."""
        final = StepTotals.of(self._rows)
        scale = totals.num_tokens / final.num_tokens if totals.per_token else totals.num_sequences / final.num_sequences
        for parameter in self._policy.trained:
            if parameter.grad is not None:
                parameter.grad.mul_(scale)
        return replace(
            totals,
            num_sequences=final.num_sequences,
            num_tokens=final.num_tokens,
            lag=final.lag,
            max_lag=final.max_lag,
            loss=totals.loss * scale,
        )
