"""Spot checks: compares a worker's log-probabilities with those under the snapshots it names."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable

import torch

from swarm.policy.loading import Policy
from swarm.policy.logprobs import completion_logprobs
from swarm.policy.snapshot import unpack
from swarm.policy.weights import swap_weights
from swarm.reasons import Reason
from swarm.training.rows import sampled_row
from swarm.types import GradedGroup, RolloutGroup, VersionSpan

MAX_REMEMBERED = 1_024


class SnapshotAuditor:
    """Recomputes log-probabilities under the snapshots it keeps, with its own policy.

    After a weight change within a completion, later tokens were sampled with the KV cache of the old weights, unless it
    was recomputed: `tolerance` must allow for this small difference.
    """

    def __init__(
        self,
        load: Callable[[], Policy],
        temperature: float,
        *,
        fraction: float,
        tolerance: float,
        num_kept: int,
        seed: int = 0,
    ) -> None:
        """`load` makes a policy with replaceable weights, at the first check.

        `fraction` of the groups is checked; with 0 none. A worker's first group is always checked; after a false claim
        all are, until one is true. `tolerance` is in nats, mean over a completion's tokens. The newest `num_kept`
        snapshots are kept.
        """
        self.num_checked = 0
        self._load = load
        self._policy: Policy | None = None
        self._temperature = temperature
        self._fraction = fraction
        self._tolerance = tolerance
        self._num_kept = num_kept
        self._random = random.Random(seed)
        self._snapshots: OrderedDict[int, bytes] = OrderedDict()
        self._truthful: dict[str, bool] = {}
        """The last result for each checked worker."""

    def keep(self, version: int, snapshot: bytes) -> None:
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
        if self._truthful.get(peer_id, False) and self._random.random() >= self._fraction:
            return None
        self.num_checked += 1
        if len(self._truthful) >= MAX_REMEMBERED:
            self._truthful.clear()
        self._truthful[peer_id] = self._difference(group) <= self._tolerance
        return None if self._truthful[peer_id] else Reason.WRONG_LOGPROBS

    @torch.no_grad()
    def _difference(self, graded: GradedGroup) -> float:
        """Largest difference over the completions: nats per token, mean over a completion's tokens."""
        completions, spans = graded.group.completions, _spans(graded.group)
        off = [0.0] * len(completions)
        for version in sorted({span.version for parts in spans for span in parts}):
            policy = self._at(version)
            prompt = policy.encode_prompt(graded.prompt)
            rows = [sampled_row(policy, prompt, graded, index) for index in range(len(completions))]
            ids, inserts = [row.completion for row in rows], [row.inserts for row in rows]
            own = completion_logprobs(policy, [prompt] * len(rows), ids, self._temperature, inserts).tolist()
            for i, completion in enumerate(completions):
                start = 0
                for span in spans[i]:
                    part = slice(start, start := start + span.num_tokens)
                    if span.version == version:
                        off[i] += sum(abs(x - y) for x, y in zip(own[i][part], completion.logprobs[part], strict=False))
        return max(total / len(completion.token_ids) for total, completion in zip(off, completions, strict=True))

    def _at(self, version: int) -> Policy:
        """The auditor's policy with the weights of a snapshot."""
        if self._policy is None:
            self._policy = self._load()
            self._policy.version = -1
        if self._policy.version != version:
            swap_weights(self._policy, unpack(self._snapshots[version]), version)
        return self._policy


def _spans(group: RolloutGroup) -> list[tuple[VersionSpan, ...]]:
    """[G] the version spans of each completion."""
    whole = group.policy.version
    return [c.versions or (VersionSpan(whole, len(c.token_ids)),) for c in group.completions]
