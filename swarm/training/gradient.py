"""The gradient of one optimizer step, whose rows come all at once or one group after the other.

add   ──▶ rows ──▶ micro-batches ──▶ gradient, as if there were no more rows
add   ──▶ ...                            │
close ──▶ gradient x (rows then / rows now) ──▶ its norm, clipped
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from swarm.policy.loading import Policy
from swarm.training.objective import Objective
from swarm.training.passes import Passes
from swarm.training.rows import Row
from swarm.training.steps import StepTotals, merge


class GradientAccumulator:
    """Sums the gradients of micro-batches; the sum is that of the whole batch, however it is cut."""

    def __init__(
        self,
        policy: Policy,
        passes: Passes,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        max_grad_norm: float,
    ) -> None:
        """An empty gradient for the parameters of `optimizer`, which are those `policy` trains."""
        self._policy = policy
        self._passes = passes
        self._objective = objective
        self._optimizer = optimizer
        self._max_grad_norm = max_grad_norm
        self._scaler = torch.amp.GradScaler(policy.device.type, enabled=policy.dtype is torch.float16)
        self._rows: list[Row] = []
        self._num_done: int | None = None
        """How many of the rows are in the gradient, from the first on; None when it has to be begun."""
        self._totals = StepTotals()

    @property
    def rows(self) -> Sequence[Row]:
        """The rows added."""
        return self._rows

    def add(self, rows: Sequence[Row]) -> None:
        """Put further rows into the gradient; `Passes.training` must be in effect. Raises `OutOfMemory`."""
        self._rows += rows
        self._passes.attempt(self._extend, self._rows)

    def close(self) -> tuple[StepTotals, float]:
        """The figures of all rows, and the norm that the gradient had before it was clipped.

        With float16 the loss is scaled down until nothing overflows. `Passes.training` must be in effect.
        """
        while True:
            totals = self._whole(merge(self._policy.ranks.gather(self._totals)))
            grad_norm = self._clip()
            overflown = math.isfinite(totals.loss) and not math.isfinite(grad_norm) and self._scaler.get_scale() > 1
            self._scaler.update()
            if not overflown:
                return totals, grad_norm
            self._num_done = None
            self._passes.attempt(self._extend, self._rows)

    def clear(self) -> None:
        """Forget the rows and their gradient."""
        self._rows, self._num_done = [], None
        self._optimizer.zero_grad(set_to_none=True)

    def _extend(self, max_tokens: int) -> None:
        """Put the rows that are not there yet into the gradient; all of them again after memory ran out."""
        if self._num_done is None:
            self._optimizer.zero_grad(set_to_none=True)
            self._num_done, self._totals = 0, StepTotals.of(self._rows)
        fresh, self._num_done = self._rows[self._num_done :], None
        for micro in self._passes.micro_batches(fresh, max_tokens):
            self._backward(micro)
        self._num_done = len(self._rows)

    def _backward(self, rows: list[Row]) -> None:
        """Add one micro-batch's share of the loss and its gradient."""
        scores = self._passes.scores(rows)
        if not rows:
            (scores.logprobs.sum() * 0.0).backward()  # type: ignore[no-untyped-call]
            return
        loss, figures = self._objective.share(scores, rows, self._totals.num_sequences, self._totals.num_tokens)
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self._totals.add(float(loss.detach()), figures)

    def _whole(self, totals: StepTotals) -> StepTotals:
        """The gradient and its figures as if all rows had been known when the first of them came."""
        self._scaler.unscale_(self._optimizer)
        totals, scale = totals.rescaled(self._rows, self._objective.per_token)
        for parameter in self._policy.trained:
            if parameter.grad is not None and scale != 1:
                parameter.grad.mul_(scale)
        return totals

    def _clip(self) -> float:
        """Scale the gradient down to the largest norm allowed; its norm before."""
        parameters = self._policy.trained
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = self._policy.ranks.whole(torch.nn.utils.get_total_norm(gradients))
        torch.nn.utils.clip_grads_with_norm_(parameters, self._max_grad_norm, norm)
        return float(norm)
