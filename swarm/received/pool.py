"""Received groups that wait for an update: bounded, deduplicated by the caller's ids, with a quota per peer and a
maximum age."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import pstdev

from msgspec import Struct
from pydantic import Field

from swarm.fair_store import FairStore, Share
from swarm.groups.credit import has_signal
from swarm.protocols import KeepSample
from swarm.reasons import Reason
from swarm.received.authors import AuthorOf, itself
from swarm.settings import Settings
from swarm.types import GradedGroup, ReceivedGroup


class PoolSettings(Settings):
    """Which received groups are kept, and for how long."""

    min_reward_std: float | None = Field(0.0, ge=0, lt=1)
    """Groups enter only if the standard deviation of their rewards is larger; others are dropped as `zero_advantage`.
    0: all with signal, as in SAPO; `null`: also those without, which take slots in updates and teach nothing."""
    max_groups: int = Field(128, ge=1)
    """Also of the groups that wait until updates will take them, before they are graded."""
    max_age_s: float = Field(600.0, gt=0)
    """Groups that this node received longer ago are dropped as `expired`, graded or not."""
    max_uses: int = Field(1, ge=1)
    """Updates that a group may take part in before it leaves the pool."""
    max_share_per_peer: float = Field(0.5, gt=0, le=1)
    """Largest fraction of `max_groups` for one peer's groups; beyond it that peer's oldest group leaves. Also of the
    grading queue; beyond it that peer's new groups are refused. In the pool, all newcomers count as one peer."""
    recorded: Path | None = None
    """The `samples.jsonl`, or the directory, of an earlier node: its groups join those received, as the groups of one
    more author, `recorded`. They are graded and screened like others'. Default: none."""
    recorded_per_round: int = Field(1, ge=1)
    """Groups of that file that join in each round, each once, in the order of the file."""


class PooledGroup(Struct):
    """A graded group in a checkpoint."""

    content_id: str
    graded: GradedGroup
    arrived_at: float
    uses: int = 0

    @classmethod
    def of(cls, received: ReceivedGroup) -> PooledGroup:
        """What a checkpoint keeps of a received group."""
        return cls(received.content_id, received.graded, received.arrived_at, received.uses)

    def received(self) -> ReceivedGroup:
        """The group as it was; nobody is charged for it."""
        return ReceivedGroup(self.content_id, self.graded, arrived_at=self.arrived_at, uses=self.uses)


class Pool:
    """Ordered from the oldest; methods return the reason of every departure other than use, for the ledger."""

    def __init__(self, settings: PoolSettings, keep: KeepSample = lambda fate, group: None) -> None:
        """An empty pool; `keep` is called with each unused group that leaves, and why."""
        self._settings = settings
        self._keep = keep
        quota = max(1, int(settings.max_groups * settings.max_share_per_peer))
        self._groups = FairStore[str, ReceivedGroup](
            settings.max_groups, math.inf, Share(max_items=quota), prefers_new=True
        )

    def __len__(self) -> int:
        """Groups available, used ones included."""
        return len(self._groups)

    def __contains__(self, content_id: object) -> bool:
        """Whether a group is available."""
        return content_id in self._groups

    def __iter__(self) -> Iterator[ReceivedGroup]:
        """Every available group, oldest first."""
        return iter(self._groups.values())

    @property
    def max_groups(self) -> int:
        """The most groups that it holds."""
        return self._settings.max_groups

    @property
    def max_age_s(self) -> float:
        """Seconds after which groups leave."""
        return self._settings.max_age_s

    def wants(self, rewards: Sequence[float]) -> bool:
        """Whether a group with these rewards may enter."""
        least = self._settings.min_reward_std
        return least is None or (has_signal(rewards) and pstdev(rewards) > least)

    def admit(self, received: ReceivedGroup, author_of: AuthorOf = itself) -> Counter[Reason]:
        """Add a group that is wanted. Returns the reasons of the groups that left for it: `peer_quota`, `pool_full`.

        A full pool drops the oldest group of the author with the most, so that a flood cannot displace others' groups.
        Raises `ValueError` for an id in the pool: the caller deduplicates.
        """
        if received.content_id in self._groups:
            raise ValueError(f"group {received.content_id} is already in the pool")
        self._groups.charge(lambda each: (author_of(each.peer_id),))
        left: Counter[Reason] = Counter()
        for each, limit in self._groups.add(received.content_id, received, author_of(received.peer_id)):
            self._left(each, Reason.POOL_FULL if limit == "items" else Reason.PEER_QUOTA, left)
        return left

    def expire(self, now: float) -> Counter[Reason]:
        """Drop groups past their maximum age; returns the `expired` count of those never used."""
        left: Counter[Reason] = Counter()
        for each in self:  # in the order of grading, not of arrival
            if now - each.arrived_at > self._settings.max_age_s:
                self._left(self._groups.pop(each.content_id), Reason.EXPIRED, left)
        return left

    def use(self, groups: Iterable[ReceivedGroup]) -> int:
        """Mark groups as used in an update; those at `max_uses` leave. Returns how many were used for the first
        time."""
        first = 0
        for received in groups:
            first += received.uses == 0
            received.uses += 1
            if received.uses >= self._settings.max_uses:
                self._groups.pop(received.content_id)
        return first

    def refuse(self, groups: Iterable[ReceivedGroup], reason: Reason) -> int:
        """Drop groups that proved unusable. Returns how many had never been used."""
        left: Counter[Reason] = Counter()
        for received in groups:
            self._left(self._groups.pop(received.content_id), reason, left)
        return left[reason]

    def num_unused(self) -> int:
        """Groups that have not taken part in any update."""
        return sum(each.uses == 0 for each in self)

    def dump(self) -> list[PooledGroup]:
        """Everything for a checkpoint, oldest first."""
        return [PooledGroup.of(each) for each in self]

    def restore(self, groups: Iterable[PooledGroup]) -> None:
        """Restore what `dump` returned."""
        self._groups.clear()
        for saved in groups:
            self._groups.add(saved.content_id, saved.received(), saved.graded.group.peer_id)

    def _left(self, received: ReceivedGroup, reason: Reason, left: Counter[Reason]) -> None:
        """Count a group that left; one that an update used counts as used, whatever removed it."""
        if received.uses == 0:
            left[reason] += 1
            self._keep(reason, received.graded)
