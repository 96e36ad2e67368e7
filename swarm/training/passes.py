"""Forward passes over rows: split to fit memory, divided among the ranks."""

from __future__ import annotations

import logging
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
from swarm.training.layers import TrainingLayers, is_compiled
from swarm.training.memory.pass_memory import PassMemory, bytes_for_a_pass, measure
from swarm.training.rows import Row
from swarm.training.sketches import Sketcher

MICRO_BATCH_TOKENS = defaultdict(lambda: 16_384, cpu=1_024)
"""Default tokens per forward pass, by type of device."""
LIMITED = ("cuda", "mps")
"""Types of device where the default is bounded by free memory."""
ENOUGH_TOKENS = 4_096
"""Tokens of a pass from which on a GPU is busy: layers are checkpointed only where fewer would fit."""

logger = logging.getLogger(__name__)

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
        self._compiled = is_compiled(settings.compile, policy)
        if self._compiled:
            logger.info("layers are compiled: the first update takes longer, the first one on this machine by a minute")
        self._layers = TrainingLayers(policy.model, self._compiled, settings.gradient_checkpointing)
        alone = policy.ranks.size == 1
        budget = settings.micro_batch_tokens or MICRO_BATCH_TOKENS[policy.device.type]
        self._budget = TokenBudget(budget, alone, self._recompute)
        self._optimizer = settings.optimizer
        limited = alone and policy.device.type in LIMITED
        self._chooses_layers = limited and self._layers.checkpointed and settings.gradient_checkpointing is None
        self._chooses_tokens = limited and settings.micro_batch_tokens is None
        self._memory: tuple[PassMemory, PassMemory] | None = None
        """Plain and checkpointed, to be compared with the free memory before the first pass; None: all stays."""
        if self._chooses_layers or self._chooses_tokens:
            with self._batching.attention(policy.model):
                self._memory = measure(policy, self._scorer, self._compiled)

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
            self._fit(*self._memory, max((row.length for row in rows), default=1))
            self._memory = None
        return self._budget.attempt(work, rows)

    def _fit(self, plain: PassMemory, checkpointed: PassMemory, longest: int) -> None:
        """Choose what is not configured by the free memory: `longest` is the most tokens of a row."""
        room = bytes_for_a_pass(self._policy, self._optimizer)
        if self._chooses_layers:
            enough = max(min(self._budget.tokens, ENOUGH_TOKENS), longest)
            self._layers.checkpointed = plain.tokens_within(room) < enough
        if self._chooses_tokens:
            memory = checkpointed if self._layers.checkpointed else plain
            self._budget.tokens = min(self._budget.tokens, memory.tokens_within(room))

    def _recompute(self) -> bool:
        """Checkpoint layers from now on; says whether that was a choice, and not yet made."""
        saved = self._chooses_layers and not self._layers.checkpointed
        self._layers.checkpointed |= saved
        if saved:
            logger.warning("out of memory; recomputing activations from now on, as update.gradient_checkpointing does")
        return saved

    def micro_batches(self, rows: Sequence[Row], max_tokens: int) -> list[list[Row]]:
        """This rank's micro-batches, padded with empty ones to the same number on every rank: all ranks join each
        pass."""
        ranks = self._policy.ranks
        mine = [rows[i] for i in ranks.share([row.length for row in rows])]
        batches = list(self._batching.cut(mine, max_tokens))
        return batches + [[] for _ in range(ranks.most(len(batches)) - len(batches))]

    def scores(self, rows: Sequence[Row]) -> Scores:
        """The policy's scores of a micro-batch's tokens, with gradient."""
        self._layers.compiled = self._compiled and not self._sketcher.active  # compiled layers call no hooks
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
