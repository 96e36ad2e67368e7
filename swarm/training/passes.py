"""Forward passes over rows: split to fit memory, divided among the ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TypeVar

import torch

from swarm.policy.loading import Policy
from swarm.policy.logprobs import Scorer, Scores, choose_batching, logprobs_by_row
from swarm.policy.out_of_memory import TokenBudget
from swarm.training.config import UpdateSettings
from swarm.training.layers import TrainingLayers
from swarm.training.memory.pass_memory import PassMemory, bytes_for_a_pass, measure
from swarm.training.rows import Row
from swarm.training.sketches import Sketcher

MICRO_BATCH_TOKENS = defaultdict(lambda: 16_384, cpu=1_024)
"""Default tokens per forward pass, by type of device."""
LIMITED = ("cuda", "mps")
"""Types of device where the default is bounded by free memory."""

T = TypeVar("T")


class Passes:
    """Scores rows with the trained policy or its reference, one micro-batch at a time."""

    def __init__(self, policy: Policy, settings: UpdateSettings, temperature: float, sketcher: Sketcher) -> None:
        """Log-probabilities are taken at the sampling `temperature`. Raises `PolicyError`."""
        self._policy = policy
        self._sketcher = sketcher
        self._temperature = temperature
        self._batching = choose_batching(policy, settings.batching)
        self._scorer = Scorer(policy, temperature, self._batching)
        self._layers = TrainingLayers(policy.model, settings.compile, settings.gradient_checkpointing)
        alone = policy.ranks.size == 1
        budget = settings.micro_batch_tokens or MICRO_BATCH_TOKENS[policy.device.type]
        self._budget = TokenBudget(budget, alone)
        self._optimizer = settings.optimizer
        self._memory: PassMemory | None = None
        """What is compared with the free memory before the first pass; None: the budget stands."""
        if settings.micro_batch_tokens is None and policy.device.type in LIMITED and alone:
            with self._batching.attention(policy.model):
                self._memory = measure(policy, self._scorer, self._layers.checkpointed)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Configure the model for training, from the first forward pass to the last backward pass. This sets compiled
        or checkpointed layers, the batching's attention, and recorded experts.

        """
        routers = self._policy.routers
        replaying = routers.replaying() if routers is not None else nullcontext()
        with self._layers.active(), self._batching.attention(self._policy.model), replaying:
            yield

    def attempt(self, work: Callable[[int], T], rows: Sequence[Row]) -> T:
        """Return `work(max_tokens)`; retries with half the tokens when memory runs out. Raises `OutOfMemory`."""
        if self._memory is not None:  # only now has the engine taken its share
            room = bytes_for_a_pass(self._policy, self._optimizer)
            self._budget.tokens = min(self._budget.tokens, self._memory.tokens_within(room))
            self._memory = None
        return self._budget.attempt(work, rows)

    def micro_batches(self, rows: Sequence[Row], max_tokens: int) -> list[list[Row]]:
        """This rank's micro-batches, padded with empty ones to the same number on every rank: all ranks join each
        pass."""
        ranks = self._policy.ranks
        mine = [rows[i] for i in ranks.share([row.length for row in rows])]
        batches = list(self._batching.cut(mine, max_tokens))
        return batches + [[] for _ in range(ranks.most(len(batches)) - len(batches))]

    def scores(self, rows: Sequence[Row]) -> Scores:
        """The policy's scores of a micro-batch's tokens, with gradient."""
        if self._sketcher.active:
            self._sketcher.follow(rows, self._batching.lay_out(rows).pieces)
        return self._score(self._scorer, rows)

    def logprobs(self, rows: Sequence[Row]) -> list[list[float]]:
        """The policy's log-probabilities of each row's tokens, each row computed on one rank."""
        return self._read(self._scorer, rows)

    def reference_logprobs(self, reference: Policy, rows: Sequence[Row]) -> list[list[float]]:
        """The same for another policy of the same architecture."""
        with self._batching.attention(reference.model):
            return self._read(Scorer(reference, self._temperature, self._batching), rows)

    def _read(self, scorer: Scorer, rows: Sequence[Row]) -> list[list[float]]:
        return self.attempt(lambda max_tokens: self._logprobs(scorer, rows, max_tokens), rows)

    @torch.no_grad()
    def _logprobs(self, scorer: Scorer, rows: Sequence[Row], max_tokens: int) -> list[list[float]]:
        mine = logprobs_by_row(rows, self.micro_batches(rows, max_tokens), partial(self._score, scorer))
        found = dict(pair for part in self._policy.ranks.gather(mine) for pair in part)
        return [found[i] for i in range(len(rows))]

    def _score(self, scorer: Scorer, rows: Sequence[Row]) -> Scores:
        """An empty micro-batch is scored with a dummy row."""
        nothing = [self._policy.pad_id]
        return scorer(rows or [Row(nothing, nothing, 0.0, None)])
