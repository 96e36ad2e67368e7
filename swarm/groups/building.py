"""A node's own groups, of peers and workers: built from completions, shared, and why a question has none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from swarm.groups.expectation import log_group_expectation
from swarm.protocols import GroupExchange
from swarm.reasons import Reason
from swarm.sanitize import clean
from swarm.types import Completion, Grade, GradedGroup, PolicyId, Rejection, RolloutGroup, Sampling, TaskRef

REMEDIES = MappingProxyType(
    {
        Reason.PROMPT_TOO_LONG: "ask shorter questions, lower generation.max_new_tokens, or choose a model with more "
        "positions",
        Reason.JUDGE_FAILED: "make sure that the server at judge.endpoint or reward_service.url is up and knows the "
        "model",
        Reason.JUDGE_TIMEOUT: "raise its time_limit_s, or choose a faster judge or service",
        Reason.JUDGE_BUDGET: "raise its budget per hour, or ask fewer questions",
    }
)
"""What helps where a node's own questions have no groups."""


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


class Member(Struct, frozen=True):
    """This node in the swarm."""

    peer_id: str
    policy_id: PolicyId
    """Its version is ignored: each group names its own."""
    sampling: Sampling
    seed: int = 0
    """Seeds its stream of questions and its draws."""
    clock: Callable[[], float] = time.time
    """Unix seconds."""


class OwnGroups:
    """Numbers, builds and shares this node's groups."""

    def __init__(self, me: Member, exchange: GroupExchange, token_ids: bool) -> None:
        """`token_ids`: whether to share token ids, log-probabilities and versions besides the text."""
        self._me = me
        self._exchange = exchange
        self._token_ids = token_ids
        self._sequence = int(me.clock() * 1000)  # milliseconds: increases across restarts without being stored

    def make(
        self, question: TaskRef, completions: Sequence[Completion], rewards: Sequence[float], version: int = 0
    ) -> RolloutGroup:
        """The next group. Its version is that of its oldest token, or `version` if its tokens name none."""
        self._sequence += 1
        group = RolloutGroup(
            run_id="",  # the exchange sets it
            peer_id=self._me.peer_id,
            sequence=self._sequence,
            created_at=self._me.clock(),
            policy=replace(self._me.policy_id, version=version),
            sampling=self._me.sampling,
            question=question,
            completions=tuple(completions),
            rewards=tuple(rewards),
            log_expectation=log_group_expectation(completions),
        )
        return replace(group, policy=replace(group.policy, version=group.oldest_version))

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
    turns = tuple(replace(turn, num_tokens=0, forced=_unplaced(turn.forced)) for turn in completion.turns)
    forced = _unplaced(completion.forced)
    return replace(completion, token_ids=(), logprobs=(), versions=(), turns=turns, forced=forced)


def _unplaced(forced: int | None) -> int | None:
    """That there is an inserted end of a thought, without its place among tokens."""
    return None if forced is None else 0


def without_group(rejection: Rejection) -> str:
    """Why an own question has no group, and what helps."""
    why = f"{rejection.reason}: {clean(rejection.detail)}" if rejection.detail else str(rejection.reason)
    return f"{why}; {remedy}" if (remedy := REMEDIES.get(rejection.reason)) else why
