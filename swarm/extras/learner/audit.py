"""Spot checks: compares a worker's log-probabilities with those under the snapshots it names, and tests whether what
it says was sampled from them."""

from __future__ import annotations

import logging
import random
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from swarm.errors import OutOfMemory
from swarm.extras.learner.packing import read_snapshot
from swarm.extras.learner.sampled import POWERS, SamplingTest
from swarm.files import RandomAccessFile
from swarm.policy.batching import Insert, Padded
from swarm.policy.loading import Policy
from swarm.policy.logprobs import Continuation, Scorer
from swarm.policy.out_of_memory import TokenBudget, needing_memory
from swarm.policy.weights import swap_weights
from swarm.reasons import Reason
from swarm.training.forward import MICRO_BATCH_TOKENS
from swarm.training.rows import Row, sampled_row
from swarm.types import GradedGroup, RolloutGroup, Sampling, VersionSpan

logger = logging.getLogger(__name__)

MAX_REMEMBERED = 1_024

Reading = NDArray[np.float64]
"""[1 + powers, T] log-probabilities of a completion's tokens, and log sum p^a of their distributions for each of
`POWERS`."""


class SnapshotAuditor:
    """Recomputes log-probabilities under the snapshots it keeps, with its own policy.

    After a weight change within a completion, an engine keeps the cache of the old weights or recomputes it. In a short
    completion the difference between the two can be larger than a lie, so tokens are compared with both, and the closer
    one counts. `tolerance` must allow for other kernels and dtypes. An engine reports the log-probabilities of what its
    filters leave, so these are what is recomputed.

    The same pass tests whether all that a worker said so far can have been sampled (`sampled.py`). While
    something speaks against it, all of its groups are checked.
    """

    def __init__(
        self,
        load: Callable[[], Policy],
        sampling: Sampling,
        *,
        fraction: float,
        tolerance: float,
        num_kept: int,
        tries: Callable[[str], float] = lambda peer_id: 1.0,
        seed: int = 0,
    ) -> None:
        """`load` makes a policy with replaceable weights, at the first check. `sampling` is the learner's; groups with
        another distribution were refused before.

        `fraction` of the groups is checked; with 0 none. A worker's first groups are always checked; after a false
        claim all are, until one is true. `tolerance` is in nats, mean over a completion's tokens. The newest `num_kept`
        snapshots are kept. `tries` says how many groups a worker samples for each that it sends.
        """
        self._load = load
        self._policy: Policy | None = None
        self._budget: TokenBudget | None = None
        """Tokens of a pass; known with the policy."""
        self._sampling = sampling
        self._fraction = fraction
        self._tolerance = tolerance
        self._num_kept = num_kept
        self._random = random.Random(seed)
        self._snapshots: OrderedDict[int, RandomAccessFile] = OrderedDict()
        self._tries = tries
        self._truthful: dict[str, bool] = {}
        """The last result for each checked worker."""
        self._sampled = SamplingTest(sampling.max_new_tokens)

    def keep(self, version: int, snapshot: RandomAccessFile) -> None:
        """Remember a published snapshot. See `Auditor`."""
        self._snapshots[version] = snapshot
        while len(self._snapshots) > self._num_kept:
            self._snapshots.popitem(last=False)

    def verdict(self, group: GradedGroup) -> Reason | None:
        """Why a group is refused. See `Auditor`."""
        missing = {span.version for spans in _spans(group.group) for span in spans} - self._snapshots.keys()
        if missing:
            # Missing versions older than the kept ones cannot be checked; newer ones were never published.
            return Reason.WRONG_VERSION if max(missing) > min(self._snapshots, default=max(missing)) else None
        peer_id = group.group.peer_id
        if self._fraction == 0:
            return None
        sure = self._truthful.get(peer_id, False) and not self._sampled.is_doubtful(peer_id)
        if sure and self._random.random() >= self._fraction:
            return None
        if len(self._truthful) >= MAX_REMEMBERED:
            self._truthful.clear()
        try:
            with needing_memory("a spot check does not fit in memory"):
                off, readings = self._compared(group)
        except OutOfMemory as error:
            logger.warning("a group is taken without a spot check: %s", error)
            return None
        self._truthful[peer_id] = off <= self._tolerance
        if not self._truthful[peer_id]:
            return Reason.WRONG_LOGPROBS
        sampled = self._sampled.passes(peer_id, readings, group.rewards, self._tries(peer_id))
        return None if sampled else Reason.UNLIKE_SAMPLES

    @torch.no_grad()
    def _compared(self, graded: GradedGroup) -> tuple[float, list[Reading]]:
        """Largest difference over the completions, nats per token, mean over a completion's tokens; and the readings
        [G] of the completions."""
        completions, spans = graded.group.completions, _spans(graded.group)
        versions = sorted({span.version for parts in spans for span in parts})
        policy = self._at(versions[0])
        prompt = policy.encode_prompt(graded.prompt)
        rows = [sampled_row(policy, prompt, graded, index) for index in range(len(completions))]
        turns = [list(_turns(row, parts)) for row, parts in zip(rows, spans, strict=True)]
        off = [0.0] * len(completions)
        readings = [np.empty((1 + len(POWERS), len(row.completion))) for row in rows]
        for version in versions:
            policy = self._at(version)
            recomputed = self._read(policy, rows)
            for i, completion in enumerate(completions):
                for turn in turns[i]:
                    for part in turn.parts.get(version, ()):
                        read = [recomputed[i][:, part]]
                        if (kept := turn.kept(policy, part, self._sampling)) is not None:
                            read.append(kept)
                        claims = completion.logprobs[part]
                        distances = [float(np.abs(each[0][: len(claims)] - claims).sum()) for each in read]
                        off[i] += min(distances)
                        readings[i][:, part] = read[int(np.argmin(distances))]
        return max(total / len(row.completion) for total, row in zip(off, rows, strict=True)), readings

    def _read(self, policy: Policy, rows: Sequence[Row]) -> list[Reading]:
        """[G] in passes that fit in memory. Raises `OutOfMemory`."""
        if self._budget is None:
            self._budget = TokenBudget(MICRO_BATCH_TOKENS[policy.device.type])
        return self._budget.attempt(lambda max_tokens: self._within(policy, rows, max_tokens), rows)

    def _within(self, policy: Policy, rows: Sequence[Row], max_tokens: int) -> list[Reading]:
        batching = Padded(policy.mrope_positions)
        scorer = Scorer(policy, self._sampling.temperature, batching, self._sampling)
        found: dict[int, Reading] = {}
        for part in batching.cut(rows, max_tokens):
            values, _ = scorer.spreads(part, POWERS)
            read = torch.stack(values, dim=1).double().cpu().numpy()  # [R, 1 + powers, T]
            found |= {id(row): read[index, :, : len(row.completion)] for index, row in enumerate(part)}
        return [found[id(row)] for row in rows]

    def _at(self, version: int) -> Policy:
        """The auditor's policy with the weights of a snapshot."""
        if self._policy is None:
            self._policy = self._load()
            self._policy.version = -1
        if self._policy.version != version:
            swap_weights(self._policy, read_snapshot(self._policy, self._snapshots[version]), version)
        return self._policy


@dataclass
class _Turn:
    """One turn of a completion. Its first token's weights read what precedes it, whatever sampled that."""

    context: Sequence[int]
    tokens: Sequence[int]
    """With those that an engine inserted."""
    sampled: Sequence[int]
    """Where in `tokens` the policy's own are."""
    begin: int
    """Tokens of the completion in earlier turns."""
    parts: dict[int, list[slice]]
    """Slices of the completion's tokens in this turn, by the policy version that sampled them."""
    continuation: Continuation | None = None

    def kept(self, policy: Policy, part: slice, sampling: Sampling) -> Reading | None:
        """The reading of a part by an engine that kept its cache; None where that is no other figure, or the parts do
        not come in order."""
        if len(self.parts) == 1:
            return None
        if self.continuation is None:
            self.continuation = Continuation(policy, self.context, self.tokens, sampling.temperature, sampling, POWERS)
        before = self.continuation.num_scored
        if self.begin + bisect_left(self.sampled, before) != part.start:
            return None
        places = self.sampled[part.start - self.begin : part.stop - self.begin]
        read = self.continuation.next(places[-1] + 1 - before).double().cpu().numpy()
        return read[:, [place - before for place in places]]


def _turns(row: Row, spans: Sequence[VersionSpan]) -> Iterator[_Turn]:
    context = list(row.prompt)
    begin = start = 0
    tokens: list[int] = []
    sampled: list[int] = []
    for insert in (*row.inserts, Insert(len(row.completion), ())):
        sampled += range(len(tokens), len(tokens) + insert.after - start)
        tokens += row.completion[start : insert.after]
        start = insert.after
        if insert.within:
            tokens += insert.ids
            continue
        yield _Turn(list(context), tokens, sampled, begin, _parts(spans, begin, start))
        context += [*tokens, *insert.ids]
        begin, tokens, sampled = start, [], []


def _parts(spans: Sequence[VersionSpan], begin: int, end: int) -> dict[int, list[slice]]:
    """Slices of the tokens from `begin` to `end`, by the version that sampled them."""
    parts: dict[int, list[slice]] = {}
    start = 0
    for span in spans:
        stop = start + span.num_tokens
        if max(start, begin) < min(stop, end):
            parts.setdefault(span.version, []).append(slice(max(start, begin), min(stop, end)))
        start = stop
    return parts


def _spans(group: RolloutGroup) -> list[tuple[VersionSpan, ...]]:
    """[G] the version spans of each completion."""
    whole = group.policy.version
    return [c.versions or (VersionSpan(whole, len(c.token_ids)),) for c in group.completions]
