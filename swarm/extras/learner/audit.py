"""Spot checks: compares a worker's log-probabilities with those under the snapshots it names, and tests whether what
it says was sampled from them.

Truthful log-probabilities do not prove that a completion was sampled from the policy that it names. A marker that was
written in front of a completion can be claimed with its true log-probability, and so can a text that was chosen among
thousands of samples. But samples of a distribution p are not more surprising than its entropy for long. The test bets
against that: per token, its evidence is the likelihood ratio of a hotter or colder distribution q ~ p^a to p. For
tokens sampled from p its expectation is 1 whatever p is, so that large products are as improbable as they are large
(Ville's inequality). It needs no model of texts and no threshold for surprise.

    token ──▶ log q/p ──▶ prefixes, windows and whole of a completion ──▶ groups ──▶ sum per author, never below 0
                                                                                        │ above `BOUND`: not sampled

Source of the sums: Page, 1954; of their bound: arXiv:2203.03532 (e-detectors), theorem 2.4.
"""

from __future__ import annotations

import logging
import math
import random
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from swarm.errors import OutOfMemory
from swarm.extras.learner.packing import read_snapshot
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

POWERS = (0.5, 2.0)
"""Exponents a of the hotter and the colder distribution; log sum p^a of each comes from the pass that recomputes
log-probabilities."""
PREFIXES = (1, 2, 4, 8, 16)
"""Tokens at the beginning of a completion that are tested on their own, besides its whole: a marker sits there."""
WINDOWS = (4, 16)
"""Widths of windows, any one of which may be the surprising one."""
PART = 0.1
"""Part of the completions that was not sampled, where the test supposes so few: samples that are likelier than most do
not make up for them."""
MAX_TRIES = 64.0
"""Groups sampled for each one sent, at most, whatever a worker says."""
GROUPS_PER_DAY = 1e5
FALSE_ALARMS_PER_DAY = 1e-6
NUM_TESTS = 2 * (3 * (len(PREFIXES) + 1) + len(WINDOWS))
BOUND = math.log(NUM_TESTS * GROUPS_PER_DAY / FALSE_ALARMS_PER_DAY)
"""Nats of evidence. Of an honest author one of `GROUPS_PER_DAY` tested groups a day reaches it with at most
probability `FALSE_ALARMS_PER_DAY`."""
DOUBT = 0.25
"""Part of it from which all groups of an author are tested."""
FIRST_GROUPS = 8
"""An author's first groups, all of which are tested."""
MAX_AUTHORS = 1_024


class Standing(Struct):
    """What is known of an author."""

    sums: NDArray[np.float64]
    """[2, tests / 2] evidence so far: of all completions, and without one of either reward of each group."""
    num_groups: int = 0
    condemned: bool = False


class SamplingTest:
    """The evidence against each author. Pure: texts and policies are the caller's."""

    def __init__(self, max_new_tokens: int) -> None:
        """Nothing is known. `max_new_tokens` of a completion are sampled at most."""
        self._max_new_tokens = max_new_tokens
        self._authors: OrderedDict[str, Standing] = OrderedDict()

    def is_doubtful(self, author: str) -> bool:
        """Whether all groups of an author are to be tested: it is new, or something speaks against it."""
        known = self._authors.get(author)
        return known is None or known.num_groups < FIRST_GROUPS or float(known.sums.max()) >= DOUBT * BOUND

    def passes(
        self, author: str, readings: Sequence[NDArray[np.float64]], rewards: Sequence[float], tries: float = 1.0
    ) -> bool:
        """Add a group: whether its author's completions so far can be samples.

        `readings`: of each of the G completions [1 + len(POWERS), T], its log-probabilities and log sum p^a. `rewards`
        [G] by this node. `tries`: groups that the author samples for each that it sends, since only those with signal
        are sent. An author that failed passes again once half of the evidence against it is made up for.
        """
        known = self._of(author)
        found = np.stack([_evidence(reading, self._max_new_tokens) for reading in readings], axis=1)  # [tests / 2, G]
        known.sums = np.clip(known.sums + _of_group(found, rewards, tries), 0.0, 2 * BOUND)
        known.num_groups += 1
        most = float(known.sums.max())
        known.condemned = most >= BOUND or (known.condemned and most >= BOUND / 2)
        return not known.condemned

    def _of(self, author: str) -> Standing:
        known = self._authors.get(author)
        if known is None:
            if len(self._authors) >= MAX_AUTHORS:
                self._forget_one()
            known = self._authors[author] = Standing(np.zeros((2, NUM_TESTS // 2)))
        self._authors.move_to_end(author)
        return known

    def _forget_one(self) -> None:
        """Names are free: those against whom much speaks are forgotten last, then those tested most."""
        del self._authors[min(self._authors, key=lambda name: _weight(self._authors[name]))]


def _weight(known: Standing) -> tuple[bool, int]:
    return float(known.sums.max()) >= DOUBT * BOUND, known.num_groups


def _of_group(found: NDArray[np.float64], rewards: Sequence[float], tries: float) -> NDArray[np.float64]:
    """[2, tests / 2] log of the evidence of a group that was sent because its rewards differ.

    Whoever sends one group of n may choose what is n times as improbable: that is taken off (`tries`). And of a group
    with signal one rewarded and one other completion are chosen in any case; without the most surprising of either,
    the evidence has an expectation of at most 1 however rare the signal is (up to 2^-G).
    """
    total = found.sum(axis=1)
    mean = sum(rewards) / len(rewards)
    rewarded = np.array([reward > mean for reward in rewards])
    chosen = found[:, rewarded].max(axis=1, initial=0.0) + found[:, ~rewarded].max(axis=1, initial=0.0)
    everything = total - math.log(min(MAX_TRIES, max(1.0, tries)))
    return np.array([everything, total - chosen], dtype=np.float64)


def _evidence(reading: NDArray[np.float64], max_new_tokens: int) -> NDArray[np.float64]:
    """[tests / 2] log of the evidence of one completion, each at most `BOUND`."""
    logprobs, partitions = reading[0], reading[1:]
    hot, cold = ((power - 1) * logprobs - partition for power, partition in zip(POWERS, partitions, strict=True))
    ends = [min(width, len(logprobs)) - 1 for width in (*PREFIXES, len(logprobs))]
    hotter, colder = hot.cumsum()[ends], cold.cumsum()[ends]
    bursts = [_burst(hot, width, max_new_tokens) for width in WINDOWS]
    few = np.logaddexp(math.log(1 - PART), math.log(PART) + np.array([*hotter, *bursts]))
    found: NDArray[np.float64] = np.minimum(np.concatenate([hotter, few, colder]), BOUND)
    return found


def _burst(hot: NDArray[np.float64], width: int, max_new_tokens: int) -> float:
    """Log of the evidence that one of the windows of a completion is not sampled, any of those that it may have."""
    windows = np.minimum(np.add.reduceat(hot, range(0, len(hot), width)), BOUND)
    possible = max(len(windows), math.ceil(max_new_tokens / width))
    unused = math.log(possible - len(windows)) if possible > len(windows) else -math.inf
    return float(np.logaddexp(unused, np.logaddexp.reduce(windows))) - math.log(possible)


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
