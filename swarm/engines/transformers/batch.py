"""The sequences of one call, while they occupy slots.

Every step feeds each row its newest token, at first the prompt's last one. So prefill computes only keys and values,
all tokens are sampled in one place, and a row that lost its slot or its cache is prefilled again like a prompt. The
next turn of an episode begins with the keys and values that its last one left, and reads only what is new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from swarm.engines.stopping import Stops
from swarm.engines.transformers.decoder import Decoder
from swarm.engines.transformers.kept import KeptPrefixes
from swarm.engines.transformers.layout import READ_TOKENS, Draws, Unread
from swarm.engines.transformers.scheduler import Draft, Room, Scheduler
from swarm.engines.transformers.slots import Prefix
from swarm.errors import EngineError, OutOfMemory
from swarm.policy.loading import Policy
from swarm.policy.out_of_memory import is_out_of_memory, release_unused
from swarm.types import Sampling

READ_AHEAD_TOKENS = READ_TOKENS // 4
"""Prompts are prefilled ahead of time up to this many padded tokens."""

LOST_SHARE = 32
"""Of the longest completion, what a row may be given beyond its end so that the host need not look at each token."""


class Batch:
    """The sequences of one call."""

    def __init__(
        self,
        policy: Policy,
        decoder: Decoder,
        kv: Literal["keep", "recompute"],
        stops: Stops,
        sampling: Sampling,
        room: Room,
    ) -> None:
        """Nothing is to do yet. `kv`: whether to keep or recompute the rows' cache when the weights change."""
        self._policy = policy
        self._decoder = decoder
        self._kv = kv
        self._stops = stops
        self._sampling = sampling
        self._room = room
        self._scheduler = Scheduler((), room)
        self._cache = decoder.cache(room)
        self._prompts: dict[int, Prefix] = {}
        """Prefilled prompts whose completions have not all started, by question."""
        self._continuing: Collection[int] = ()
        """Episodes that may take another turn."""
        self._kept = KeptPrefixes()
        """What was read of them, while they wait for it."""
        self._changes = policy.gate.changes
        # Inference mode spares a fifth of a small model's step; not with FSDP, whose tensors an update uses again.
        self._without_gradients = torch.inference_mode if policy.ranks.size == 1 else torch.no_grad

    @property
    def done(self) -> bool:
        """Whether all sequences have finished."""
        return self._scheduler.done

    def close(self) -> None:
        """Sample no more: the cache is free for the next batch."""
        self._decoder.keep(self._cache)

    def add(self, drafts: Iterable[Draft]) -> None:
        """Sample more sequences."""
        self._scheduler.add(drafts)

    def expect(self, continuing: Collection[int]) -> None:
        """Keep what is read of these episodes for a later turn, and drop it of all others that await none here."""
        self._continuing = continuing
        awaited = {row.episode for row in self._scheduler.upcoming() if row.episode is not None}
        self._kept.retain(awaited.union(continuing))

    def step(self) -> list[Draft]:
        """Sample one token for every row, or the next few; returns the finished sequences."""
        with self._policy.gate.use(), self._without_gradients():
            if self._changes != self._policy.gate.changes:
                self._weights_changed()
            try:
                self._decoder.refresh()
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
        new = dict(enumerate(plan.admitted, start=plan.num_kept))
        kept = self._take_kept(new)
        self._kept.shrink(self._room.tokens - self._cache.num_tokens(plan))
        self._cache.arrange(plan)
        if new:
            self._fill(new, kept)
        starts = [row.num_tokens - 1 for row in rows]
        for place, prefix in kept.items():
            starts[place] = prefix.length
        unread = [
            Unread(place, start, row.since(start), self._placed(row, start))
            for place, (row, start) in enumerate(zip(rows, starts, strict=True))
        ]
        draws = Draws(
            [row.seed for row in rows], [len(row.ids) for row in rows], self._sampling, self._num_steps(rows, starts)
        )
        sampled, logprobs, routing = self._decoder.sample(self._cache, unread, draws)
        if torch.isnan(logprobs).any():
            raise EngineError(f"{self._policy.name} gives logits that are not finite: its weights are broken")
        version, reason = self._policy.version, self._stops.reason
        for row, new_ids, new_logprobs in zip(rows, sampled.T.tolist(), logprobs.T.tolist(), strict=True):
            row.extend(new_ids, new_logprobs, version, reason)
        if routing is not None:
            for row, experts in zip(rows, routing, strict=True):
                row.routing.append(experts)
        finished = [(place, row) for place, row in enumerate(rows) if row.finish_reason is not None]
        for place, row in finished:
            self._keep(place, row)
        self._kept.shrink(self._room.tokens - self._cache.num_tokens(plan))
        return [row for _, row in finished]

    def _num_steps(self, rows: Sequence[Draft], starts: Sequence[int]) -> int:
        """Tokens to sample of each row: as many as any can still take, and all have a place for."""
        if self._decoder.most_steps == 1:
            return 1
        limit = self._sampling.max_new_tokens
        open_tokens = max(limit - len(row.ids) for row in rows)
        places = min(self._cache.capacity, self._policy.max_positions) - max(starts)
        return max(1, min(self._decoder.most_steps, 1 + limit // LOST_SHARE, open_tokens, places))

    def _placed(self, row: Draft, start: int) -> Tensor | None:
        """[D, tokens] positions of a row's tokens from `start` on; None where they count tokens."""
        if row.following is None or self._policy.mrope_positions is None:
            return None
        if start < len(row.prompt):
            return self._policy.mrope_positions([*row.prompt, *row.ids])[:, start:]
        first = row.following + start - len(row.prompt)
        return torch.arange(first, first + row.num_tokens - start).expand(3, -1)

    def _keep(self, place: int, row: Draft) -> None:
        """Keep what the cache holds of an episode that may go on, if the present weights alone computed it."""
        if row.episode is not None and row.episode in self._continuing and not row.mixed:
            read = row.read
            routing = np.concatenate(row.routing) if row.routing else None
            self._kept.put(row.episode, read, Prefix(self._cache.copy(place, len(read)), len(read), routing))

    def _take_kept(self, rows: dict[int, Draft]) -> dict[int, Prefix]:
        """What was kept for new rows, by place."""
        found = {
            place: self._kept.take(row.episode, row.read)
            for place, row in rows.items()
            if row.episode is not None and not row.ids
        }
        return {place: prefix for place, prefix in found.items() if prefix is not None}

    def _fill(self, new: dict[int, Draft], kept: dict[int, Prefix]) -> None:
        """Fill the cache of new rows: with what was kept, with their prompt, or, if they had a slot before, with their
        own tokens."""
        begun = [place for place, row in new.items() if row.ids]
        fresh = [row for place, row in new.items() if not row.ids and place not in kept]
        self._read_prompts({row.question for row in fresh} - set(self._prompts), fresh)
        own = zip(begun, self._decoder.read([new[place].read for place in begun]), strict=True)
        found = kept | dict(own)
        places: dict[int, tuple[Prefix, list[int]]] = {}
        for place, row in new.items():
            prefix = found[place] if place in found else self._prompts[row.question]
            places.setdefault(id(prefix), (prefix, []))[1].append(place)
            row.routing = [prefix.routing] if prefix.routing is not None else []
            row.mixed = False
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
            if row.question in self._prompts or row.question in prompts or row.ids or row.episode in self._kept:
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
        self._kept.clear()
        if self._kv == "recompute":
            self._scheduler.requeue()
        for row in self._scheduler.rows:
            row.mixed = True

    def _start_over(self) -> None:
        """All rows were requeued: free the cache."""
        self._prompts.clear()
        self._kept.clear()
        self._cache = self._decoder.cache(self._room)
        release_unused()
