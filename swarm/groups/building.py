"""Builds a node's own groups from completions and shares them, for peers and workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from swarm.groups.expectation import log_group_expectation
from swarm.groups.versions import oldest_version
from swarm.protocols import GroupExchange
from swarm.types import Completion, Grade, GradedGroup, PolicyId, RolloutGroup, Sampling, TaskRef


def with_grade(group: RolloutGroup, grade: Grade) -> GradedGroup:
    """A group with this node's grade."""
    return GradedGroup(
        group,
        grade.prompt,
        grade.rewards,
        grade.observations,
        grade.parts,
        expected=grade.expected,
        found=grade.found,
    )


class OwnGroups:
    """Numbers, builds and shares this node's groups."""

    def __init__(
        self,
        *,
        peer_id: str,
        policy_id: PolicyId,
        sampling: Sampling,
        exchange: GroupExchange,
        token_ids: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`token_ids`: whether to share token ids, log-probabilities and versions besides the text."""
        self._peer_id = peer_id
        self._policy_id = policy_id
        self._sampling = sampling
        self._exchange = exchange
        self._token_ids = token_ids
        self._clock = clock
        self._sequence = int(clock() * 1000)  # milliseconds: increases across restarts without being stored

    def make(
        self, question: TaskRef, completions: Sequence[Completion], rewards: Sequence[float], version: int = 0
    ) -> RolloutGroup:
        """The next group. Its version is that of its oldest token, or `version` if its tokens name none."""
        self._sequence += 1
        group = RolloutGroup(
            run_id="",  # the exchange sets it
            peer_id=self._peer_id,
            sequence=self._sequence,
            created_at=self._clock(),
            policy=replace(self._policy_id, version=version),
            sampling=self._sampling,
            question=question,
            completions=tuple(completions),
            rewards=tuple(rewards),
            log_expectation=log_group_expectation(completions),
        )
        return replace(group, policy=replace(group.policy, version=oldest_version(group)))

    def share(self, group: RolloutGroup) -> RolloutGroup | None:
        """Send a group to the swarm; returns the group as published, or None when it could not be."""
        return self._exchange.share(self._public(group))

    def share_all(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup | None]:
        """Share groups with the swarm, which may have to ask for them. Returns each as `share` does."""
        return self._exchange.share_all([self._public(group) for group in groups])

    def _public(self, group: RolloutGroup) -> RolloutGroup:
        """The part of a group that is shared."""
        # Any model with any tokenizer can read text; only this node's own model can use routing.
        completions = [replace(completion, routing=b"") for completion in group.completions]
        if not self._token_ids:
            completions = [_text_only(completion) for completion in completions]
        return replace(group, completions=tuple(completions))


def _text_only(completion: Completion) -> Completion:
    turns = tuple(replace(turn, num_tokens=0) for turn in completion.turns)
    return replace(completion, token_ids=(), logprobs=(), versions=(), turns=turns)
