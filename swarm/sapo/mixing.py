"""The mix of SAPO: which groups teach, and how many of whose make one update. Source: arXiv:2509.08721, section 3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import numpy as np
from msgspec import Struct
from pydantic import Field, model_validator

from swarm.protocols import NEWCOMERS
from swarm.settings import Settings
from swarm.types import GradedGroup

T = TypeVar("T")
Candidate = tuple[str, GradedGroup]
"""(content id, group)"""
Screen = Callable[[Sequence[Candidate]], Sequence[GradedGroup | None]]
"""What of each group is to be learned from; None: nothing."""
AuthorOf = Callable[[str], str]
"""Whom a peer's groups count as: itself, or all newcomers together."""
MAX_DRAWS = 4
"""Draws an update, of which each but the first takes the places of what was refused."""


class MixSettings(Settings):
    """I local + J external groups an update."""

    local: int = Field(4, ge=0)
    """I: local groups an update."""
    external: int = Field(4, ge=0)
    """J: external groups an update."""
    fill: Literal["none", "local"] = "none"
    """What takes the place of missing external groups: nothing (the shortfall is reported), or further local ones."""
    external_old_logprobs: Literal["receiver", "behaviour", "none"] = "receiver"
    """What stands for the behaviour policy of external groups: this node's own log-probabilities when the batch is
    built (the paper's), the sender's (only with the same tokenizer, else `receiver`), or none: the ratio is 1."""
    external_negative_weight: float = Field(0.25, ge=0, le=1)
    """Scales negative-advantage external completions. 1 is the paper; below it wrong answers in the format this policy
    uses can drive it less far away from that format."""

    @model_validator(mode="after")
    def _something_to_train_on(self) -> MixSettings:
        if self.local + self.external == 0:
            raise ValueError("local + external must be at least 1, got 0 + 0: nothing would ever be trained on")
        return self


class Mix(Struct, frozen=True):
    """The groups of one update, and what was missing: ledger and pool are settled by it after the update."""

    local: tuple[GradedGroup, ...]
    external: tuple[GradedGroup, ...]
    external_ids: tuple[str, ...]
    """Content ids of `external`."""
    refused_ids: tuple[str, ...]
    """Content ids of external groups that were drawn and refused."""
    local_shortfall: int
    external_shortfall: int
    filled: int
    """Local groups beyond I that stand in for missing external ones."""


def _whole(drawn: Sequence[Candidate]) -> list[GradedGroup | None]:
    return [group for _, group in drawn]


def mix(
    local: Sequence[GradedGroup],
    external: Sequence[Candidate],
    settings: MixSettings,
    rng: np.random.Generator,
    *,
    share: float = 1.0,
    author_of: AuthorOf = lambda peer_id: peer_id,
    screen: Screen = _whole,
) -> Mix:
    """Sample I of the local and J of the external groups, uniformly and without replacement.

    No author has more than its fair part of J: J divided by the authors at hand, rounded up. What `screen` refuses is
    drawn again, from other authors. Both inputs have signal already. `share` is the part of J to be had now.
    """
    draw = _Draw(external, int(share * settings.external), author_of, rng)
    for _ in range(MAX_DRAWS):
        if not (drawn := draw.more()):
            break
        draw.settle(drawn, screen(drawn))
    external_shortfall = settings.external - len(draw.chosen)
    wanted = settings.local + (external_shortfall if settings.fill == "local" else 0)
    chosen_local = _sample(local, wanted, rng)
    return Mix(
        local=tuple(chosen_local),
        external=tuple(group for _, group in draw.chosen),
        external_ids=tuple(content_id for content_id, _ in draw.chosen),
        refused_ids=tuple(draw.refused),
        local_shortfall=max(0, settings.local - len(chosen_local)),
        external_shortfall=external_shortfall,
        filled=max(0, len(chosen_local) - settings.local),
    )


class _Draw:
    """External groups in random order, of each author at most its fair part of `count`."""

    def __init__(
        self, candidates: Sequence[Candidate], count: int, author_of: AuthorOf, rng: np.random.Generator
    ) -> None:
        self.chosen: list[Candidate] = []
        self.refused: list[str] = []
        self._count = count
        self._left = [candidates[i] for i in rng.permutation(len(candidates))]
        keys = {group.group.peer_id: author_of(group.group.peer_id) for _, group in candidates}
        # Where nobody but newcomers is at hand, they are authors of their own.
        self._keys = keys if set(keys.values()) != {NEWCOMERS} else {peer_id: peer_id for peer_id in keys}

    def more(self) -> list[Candidate]:
        """Groups for the places that are free."""
        if len(self.chosen) == self._count:
            return []
        num_authors = len({self._author(candidate) for candidate in [*self._left, *self.chosen]})
        fair = -(-self._count // max(1, num_authors))
        taken = Counter(self._author(candidate) for candidate in self.chosen)
        drawn: list[Candidate] = []
        left: list[Candidate] = []
        for candidate in self._left:
            author = self._author(candidate)
            if len(self.chosen) + len(drawn) < self._count and taken[author] < fair:
                taken[author] += 1
                drawn.append(candidate)
            else:
                left.append(candidate)
        self._left = left
        return drawn

    def settle(self, drawn: Sequence[Candidate], screened: Sequence[GradedGroup | None]) -> None:
        """Take what is left of the groups drawn; whose group is refused gives no other in its place."""
        out = set()
        for (content_id, group), kept in zip(drawn, screened, strict=True):
            if kept is None:
                self.refused.append(content_id)
                out.add(group.group.peer_id)
            else:
                self.chosen.append((content_id, kept))
        self._left = [candidate for candidate in self._left if candidate[1].group.peer_id not in out]

    def _author(self, candidate: Candidate) -> str:
        return self._keys[candidate[1].group.peer_id]


def _sample(items: Sequence[T], count: int, rng: np.random.Generator) -> list[T]:
    if len(items) <= count:
        return list(items)
    return [items[i] for i in rng.choice(len(items), size=count, replace=False)]
