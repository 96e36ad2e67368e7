"""The sequences of one call, while they occupy slots.

Every step feeds each row its newest token, at first the prompt's last one. So prefill computes only keys and values,
all tokens are sampled in one place, and a row that lost its slot or its cache is prefilled again like a prompt.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from swarm.engines.sampling import sample, uniforms
from swarm.engines.stopping import Stops
from swarm.engines.transformers.decoder import READ_TOKENS, Decoder
from swarm.engines.transformers.scheduler import Draft, Room, Scheduler, StepPlan
from swarm.engines.transformers.slots import Prefix
from swarm.errors import EngineError, OutOfMemory
from swarm.policy.loading import Policy
from swarm.policy.out_of_memory import is_out_of_memory
from swarm.types import Sampling

READ_AHEAD_TOKENS = READ_TOKENS // 4
"""Prompts are prefilled ahead of time up to this many padded tokens."""


class Batch:
    """The sequences of one call."""

    def __init__(
        self,
        policy: Policy,
        decoder: Decoder,
        kv: Literal["keep", "recompute"],
        stops: Stops,
        sampling: Sampling,
        drafts: list[Draft],
        room: Room,
    ) -> None:
        """Nothing is prefilled yet. `kv`: whether to keep or recompute the rows' cache when the weights change."""
        self._policy = policy
        self._decoder = decoder
        self._kv = kv
        self._stops = stops
        self._sampling = sampling
        self._room = room
        self._scheduler = Scheduler(drafts, room)
        self._cache = decoder.cache(room)
        self._prompts: dict[int, Prefix] = {}
        """Prefilled prompts whose completions have not all started, by question."""
        self._changes = policy.gate.changes
        # Inference mode spares a fifth of a small model's step; not with FSDP, whose tensors an update uses again.
        self._without_gradients = torch.inference_mode if policy.ranks.size == 1 else torch.no_grad

    @property
    def done(self) -> bool:
        """Whether all sequences have finished."""
        return self._scheduler.done

    def step(self) -> list[Draft]:
        """Sample one token for every row; returns the finished sequences."""
        with self._policy.gate.use(), self._without_gradients():
            if self._changes != self._policy.gate.changes:
                self._weights_changed()
            try:
                return self._decode()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if not self._scheduler.halve():
                    raise OutOfMemory(
                        f"not even one sequence fits on {self._policy.device}: {error}; lower max_new_tokens"
                    ) from error
            self._start_over()  # outside the handler, whose traceback keeps tensors alive
            return []

    def _decode(self) -> list[Draft]:
        plan = self._scheduler.plan()
        rows = self._scheduler.rows
        self._cache.arrange(plan)
        if plan.admitted:
            self._fill(plan)
        newest, positions = [row.last for row in rows], [row.num_tokens - 1 for row in rows]
        logits, routing = self._decoder.step(self._cache, newest, positions)
        uniform = uniforms([row.seed for row in rows], [len(row.ids) for row in rows])
        tokens, logprobs = (values.tolist() for values in sample(logits, self._sampling, uniform))
        if math.isnan(sum(logprobs)):
            raise EngineError(f"{self._policy.name} gives logits that are not finite: its weights are broken")
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            row.append(token, logprob, self._policy.version)
            row.finish_reason = self._stops.reason(row.ids)
        if routing is not None:
            for row, experts in zip(rows, routing[:, None], strict=True):
                row.routing.append(experts)
        return [row for row in rows if row.finish_reason is not None]

    def _fill(self, plan: StepPlan) -> None:
        """Fill the cache of new rows: with their prompt, or with their own tokens if they had a slot before."""
        begun = [row for row in plan.admitted if row.ids]
        fresh = [row for row in plan.admitted if not row.ids]
        self._read_prompts({row.question for row in fresh} - set(self._prompts), fresh)
        own = dict(zip((id(row) for row in begun), self._decoder.read([row.read for row in begun]), strict=True))
        places: dict[int, tuple[Prefix, list[int]]] = {}
        for place, row in enumerate(plan.admitted, start=plan.num_kept):
            prefix = own[id(row)] if row.ids else self._prompts[row.question]
            places.setdefault(id(prefix), (prefix, []))[1].append(place)
            row.routing = [prefix.routing] if prefix.routing is not None else []
        for prefix, rows in places.values():
            self._cache.fill(rows, prefix)
        open_questions = {row.question for row in self._scheduler.upcoming()}
        self._prompts = {q: prefix for q, prefix in self._prompts.items() if q in open_questions}

    def _read_prompts(self, needed: set[int], fresh: list[Draft]) -> None:
        """Prefill the prompts that are needed now and, in the same pass, the next ones."""
        if not needed:
            return
        prompts = {row.question: row.read for row in fresh if row.question in needed}
        for row in self._scheduler.upcoming():
            if row.question in self._prompts or row.question in prompts or row.ids:
                continue
            longest = max(row.num_tokens, *(len(prompt) for prompt in prompts.values()))
            if (len(prompts) + 1) * longest > READ_AHEAD_TOKENS:
                break
            prompts[row.question] = row.read
        self._prompts |= zip(prompts, self._decoder.read(list(prompts.values())), strict=True)

    def _weights_changed(self) -> None:
        """Prefill prompts again with the new weights; also recompute the rows' cache if configured."""
        self._changes = self._policy.gate.changes
        self._prompts.clear()
        if self._kv == "recompute":
            self._scheduler.requeue()

    def _start_over(self) -> None:
        """All rows were requeued: free the cache."""
        self._prompts.clear()
        self._cache = self._decoder.cache(self._room)
        if self._policy.device.type == "cuda":
            torch.cuda.empty_cache()
