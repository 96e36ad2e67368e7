"""The sequences of one call, while they occupy slots.

Every step feeds each row its newest token, at first the prompt's last one. So prefill computes only keys and values,
all tokens are sampled by the same code, and a row that lost its slot or its cache is prefilled again like a prompt. The
next turn of an episode starts from the cached keys and values of its last turn, and prefills only new tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from swarm.engines.base import Stops
from swarm.engines.transformers.decoder import Decoder
from swarm.engines.transformers.layout import READ_TOKENS, Draws, Unread
from swarm.engines.transformers.scheduler import Room, Scheduler, SequenceState
from swarm.engines.transformers.slots import Prefix
from swarm.errors import EngineError, OutOfMemory
from swarm.policy.loading import Policy
from swarm.policy.out_of_memory import is_out_of_memory, release_unused
from swarm.types import Sampling

READ_AHEAD_TOKENS = READ_TOKENS // 4
"""Prompts are prefilled ahead of time up to this many padded tokens."""
LOST_SHARE = 32
"""A row may sample this part of the longest completion beyond its end, so that the host checks tokens less often."""


@dataclass(frozen=True)
class _Entry:
    ids: list[int]
    prefix: Prefix


class PrefixCache:
    """Per-episode KV prefix cache across turns, within one call of the engine; the oldest entry is dropped first.

    A change of weights drops all entries, so that a turn samples the same with and without its entry.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self.num_tokens = 0
        """Total length of all prefixes."""

    def __contains__(self, episode: object) -> bool:
        """Whether there is an entry."""
        return episode in self._entries

    def put(self, episode: int, ids: list[int], prefix: Prefix) -> None:
        """Keep the prefix of the tokens `ids`."""
        self.take(episode, ())
        self._entries[episode] = _Entry(ids, prefix)
        self.num_tokens += prefix.length

    def take(self, episode: int, ids: Sequence[int]) -> Prefix | None:
        """Remove an episode's entry; returns it if `ids` continue its tokens."""
        entry = self._entries.pop(episode, None)
        if entry is None:
            return None
        self.num_tokens -= entry.prefix.length
        return entry.prefix if list(ids[: len(entry.ids)]) == entry.ids else None

    def retain(self, episodes: Collection[int]) -> None:
        """Drop all other episodes' entries."""
        for episode in [episode for episode in self._entries if episode not in episodes]:
            self.take(episode, ())

    def shrink(self, max_tokens: int) -> None:
        """Drop entries until at most `max_tokens` tokens are kept."""
        while self.num_tokens > max_tokens:
            self.take(next(iter(self._entries)), ())

    def clear(self) -> None:
        """Drop all entries."""
        self._entries.clear()
        self.num_tokens = 0


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
        """An empty batch. `kv`: whether to keep or recompute the rows' cache when the weights change."""
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
        self._prefixes = PrefixCache()
        """Prefixes of episodes between two turns."""
        self._changes = policy.gate.changes
        # Inference mode spares a fifth of a small model's step; not with FSDP, whose tensors an update uses again.
        self._without_gradients = torch.inference_mode if policy.ranks.size == 1 else torch.no_grad

    @property
    def done(self) -> bool:
        """Whether all sequences have finished."""
        return self._scheduler.done

    def close(self) -> None:
        """Return the cache to the decoder for the next batch."""
        self._decoder.keep(self._cache)

    def add(self, sequences: Iterable[SequenceState]) -> None:
        """Sample more sequences."""
        self._scheduler.add(sequences)

    def expect(self, continuing: Collection[int]) -> None:
        """Keep the prefixes of these episodes and of those with a turn in the queue; drop all others."""
        self._continuing = continuing
        awaited = {row.episode for row in self._scheduler.upcoming() if row.episode is not None}
        self._prefixes.retain(awaited.union(continuing))

    def step(self) -> list[SequenceState]:
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

    def _decode(self) -> list[SequenceState]:
        plan = self._scheduler.plan()
        rows = self._scheduler.rows
        new = dict(enumerate(plan.admitted, start=plan.num_kept))
        kept = self._take_kept(new)
        self._prefixes.shrink(self._room.tokens - self._cache.num_tokens(plan))
        self._cache.arrange(plan)
        if new:
            self._fill(new, kept)
        starts = [row.num_tokens - row.num_unread for row in rows]
        for slot, prefix in kept.items():
            starts[slot] = prefix.length
        unread = [
            Unread(slot, start, row.since(start), self._placed(row, start))
            for slot, (row, start) in enumerate(zip(rows, starts, strict=True))
        ]
        draws = Draws(
            [row.seed for row in rows], [len(row.ids) for row in rows], self._sampling, self._num_steps(rows, starts)
        )
        sampled, logprobs, routing = self._decoder.sample(self._cache, unread, draws)
        if torch.isnan(logprobs).any():
            raise EngineError(f"{self._policy.name} gives logits that are not finite: its weights are broken")
        version, stops = self._policy.version, self._stops
        for row, new_ids, new_logprobs in zip(rows, sampled.T.tolist(), logprobs.T.tolist(), strict=True):
            row.extend(new_ids, new_logprobs, version, stops.reason, stops.end_of_thought)
        if routing is not None:
            for row, experts in zip(rows, routing, strict=True):
                row.routing.append(experts)
        finished = [(slot, row) for slot, row in enumerate(rows) if row.finish_reason is not None]
        for slot, row in finished:
            self._keep(slot, row)
        self._prefixes.shrink(self._room.tokens - self._cache.num_tokens(plan))
        return [row for _, row in finished]

    def _num_steps(self, rows: Sequence[SequenceState], starts: Sequence[int]) -> int:
        """Tokens to sample per row: bounded by the longest open row and by the free positions of all rows."""
        if self._decoder.most_steps == 1:
            return 1
        limit = self._sampling.max_new_tokens
        open_tokens = max(limit - len(row.ids) for row in rows)
        free = min(self._cache.capacity, self._policy.max_positions) - max(starts)
        return max(1, min(self._decoder.most_steps, 1 + limit // LOST_SHARE, open_tokens, free))

    def _placed(self, row: SequenceState, start: int) -> Tensor | None:
        """[D, tokens] positions of a row's tokens from `start` on; None where they count tokens."""
        if row.following is None or self._policy.mrope_positions is None:
            return None
        if start < len(row.prompt):
            return self._policy.mrope_positions([*row.prompt, *row.ids])[:, start:]
        first = row.following + start - len(row.prompt)
        return torch.arange(first, first + row.num_tokens - start).expand(3, -1)

    def _keep(self, slot: int, row: SequenceState) -> None:
        """Keep the cached prefix of an episode that may continue, if the present weights alone computed it."""
        if row.episode is not None and row.episode in self._continuing and not row.mixed:
            read = row.read
            routing = np.concatenate(row.routing) if row.routing else None
            self._prefixes.put(row.episode, read, Prefix(self._cache.copy(slot, len(read)), len(read), routing))

    def _take_kept(self, rows: dict[int, SequenceState]) -> dict[int, Prefix]:
        """Cached prefixes of new rows, by slot."""
        found = {
            slot: self._prefixes.take(row.episode, row.read)
            for slot, row in rows.items()
            if row.episode is not None and not row.ids
        }
        return {slot: prefix for slot, prefix in found.items() if prefix is not None}

    def _fill(self, new: dict[int, SequenceState], kept: dict[int, Prefix]) -> None:
        """Fill the cache of new rows: with a cached prefix, the prompt, or, for a preempted row, all its tokens."""
        begun = [slot for slot, row in new.items() if row.ids]
        fresh = [row for slot, row in new.items() if not row.ids and slot not in kept]
        self._read_prompts({row.question for row in fresh} - set(self._prompts), fresh)
        own = zip(begun, self._decoder.read([new[slot].read for slot in begun]), strict=True)
        found = kept | dict(own)
        targets: dict[int, tuple[Prefix, list[int]]] = {}
        for slot, row in new.items():
            prefix = found[slot] if slot in found else self._prompts[row.question]
            targets.setdefault(id(prefix), (prefix, []))[1].append(slot)
            row.routing = [prefix.routing] if prefix.routing is not None else []
            row.mixed = False
            row.num_unread = 1
        for prefix, rows in targets.values():
            self._cache.fill(rows, prefix)
        open_questions = {row.question for row in self._scheduler.upcoming()}
        self._prompts = {q: prefix for q, prefix in self._prompts.items() if q in open_questions}

    def _read_prompts(self, needed: set[int], fresh: list[SequenceState]) -> None:
        """Prefill the prompts that are needed now and, in the same pass, the next ones in the queue."""
        if not needed:
            return
        prompts = {row.question: row.read for row in fresh if row.question in needed}
        for row in self._scheduler.upcoming():
            if row.question in self._prompts or row.question in prompts or row.ids or row.episode in self._prefixes:
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
        self._prefixes.clear()
        if self._kv == "recompute":
            self._scheduler.requeue()
        for row in self._scheduler.rows:
            row.mixed = True

    def _start_over(self) -> None:
        """Free the cache after all rows were requeued."""
        self._prompts.clear()
        self._prefixes.clear()
        self._cache = self._decoder.cache(self._room)
        release_unused()
