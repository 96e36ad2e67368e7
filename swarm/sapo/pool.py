"""Received groups that wait for an update: bounded, deduplicated by the caller's ids, with a quota per peer and a
maximum age."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import pstdev

from msgspec import Struct
from pydantic import Field

from swarm.groups.signal import has_signal
from swarm.protocols import KeepSample
from swarm.reasons import Reason
from swarm.settings import Settings
from swarm.types import GradedGroup


class PoolSettings(Settings):
    """Which received groups are kept, and for how long."""

    min_reward_std: float | None = Field(0.0, ge=0, lt=1)
    """Groups enter only if the standard deviation of their rewards is larger; others are dropped as `zero_advantage`.
    0: all with signal, as in SAPO; `null`: also those without, which take places in updates and teach nothing."""
    max_groups: int = Field(128, ge=1)
    """Also of the groups that wait until updates will take them, before they are graded."""
    max_age_s: float = Field(600.0, gt=0)
    """Groups that this node received longer ago are dropped as `expired`, graded or not."""
    max_uses: int = Field(1, ge=1)
    """Updates that a group may take part in before it leaves the pool."""
    max_share_per_peer: float = Field(0.5, gt=0, le=1)
    """Largest fraction of `max_groups` for one peer's groups; beyond it that peer's oldest group leaves. Also of the
    grading queue; beyond it that peer's new groups are refused. In the pool, all newcomers count as one peer."""


class PooledGroup(Struct):
    """A group in the pool."""

    content_id: str
    graded: GradedGroup
    arrived_at: float
    """Seconds on the clock given to `add`."""
    uses: int = 0


class Pool:
    """Ordered from the oldest; methods return the reason of every departure other than use, for the ledger."""

    def __init__(self, settings: PoolSettings, keep: KeepSample = lambda fate, group: None) -> None:
        """An empty pool; `keep` is told which unused groups leave, and why."""
        self._settings = settings
        self._keep = keep
        self._groups: dict[str, PooledGroup] = {}

    def __len__(self) -> int:
        """Groups available, used ones included."""
        return len(self._groups)

    def __contains__(self, content_id: object) -> bool:
        """Whether a group is available."""
        return content_id in self._groups

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

    def add(
        self,
        content_id: str,
        graded: GradedGroup,
        now: float,
        author_of: Callable[[str], str] = lambda peer_id: peer_id,
    ) -> Counter[Reason]:
        """Add a group that is wanted. Returns the reasons of the groups that left for it: `peer_quota`, `pool_full`.

        A full pool drops the oldest group of the author with the most, so that a flood cannot displace others' groups.
        Raises `ValueError` for an id in the pool: the caller deduplicates.
        """
        if content_id in self._groups:
            raise ValueError(f"group {content_id} is already in the pool")
        self._groups[content_id] = PooledGroup(content_id, graded, now)
        left: Counter[Reason] = Counter()
        author = author_of(graded.group.peer_id)
        own = [g for g in self._groups.values() if author_of(g.graded.group.peer_id) == author]
        quota = max(1, int(self._settings.max_groups * self._settings.max_share_per_peer))
        # More than one leaves only after a restart with smaller settings.
        for pooled in own[: max(0, len(own) - quota)]:
            self._drop(pooled, _fate(pooled, Reason.PEER_QUOTA), left)
        while len(self._groups) > self._settings.max_groups:
            authors = {g.content_id: author_of(g.graded.group.peer_id) for g in self._groups.values()}
            ((most, _),) = Counter(authors.values()).most_common(1)
            oldest = next(content_id for content_id, each in authors.items() if each == most)
            self._drop(self._groups[oldest], _fate(self._groups[oldest], Reason.POOL_FULL), left)
        return left

    def expire(self, now: float) -> Counter[Reason]:
        """Drop groups past their maximum age; returns the `expired` count of those never used."""
        left: Counter[Reason] = Counter()
        for pooled in list(self._groups.values()):
            if now - pooled.arrived_at <= self._settings.max_age_s:
                break
            self._drop(pooled, _fate(pooled, Reason.EXPIRED), left)
        return left

    def candidates(self) -> list[tuple[str, GradedGroup]]:
        """(content id, group) of every available group, oldest first."""
        return [(pooled.content_id, pooled.graded) for pooled in self._groups.values()]

    def use(self, content_ids: Iterable[str]) -> int:
        """Mark groups as used in an update; those at `max_uses` leave. Returns how many were used for the first
        time."""
        first = 0
        for content_id in content_ids:
            pooled = self._groups[content_id]
            first += pooled.uses == 0
            pooled.uses += 1
            if pooled.uses >= self._settings.max_uses:
                del self._groups[content_id]
        return first

    def refuse(self, content_ids: Iterable[str], reason: Reason) -> int:
        """Drop groups that proved unusable. Returns how many had never been used."""
        left: Counter[Reason] = Counter()
        for content_id in content_ids:
            self._drop(self._groups[content_id], _fate(self._groups[content_id], reason), left)
        return left[reason]

    def num_unused(self) -> int:
        """Groups that have not taken part in any update."""
        return sum(pooled.uses == 0 for pooled in self._groups.values())

    def dump(self) -> list[PooledGroup]:
        """Everything, oldest first."""
        return list(self._groups.values())

    def restore(self, groups: Iterable[PooledGroup]) -> None:
        """Restore what `dump` returned."""
        self._groups = {pooled.content_id: pooled for pooled in groups}

    def _drop(self, pooled: PooledGroup, reason: Reason | None, left: Counter[Reason]) -> None:
        del self._groups[pooled.content_id]
        if reason is not None:
            left[reason] += 1
            self._keep(reason, pooled.graded)


def _fate(pooled: PooledGroup, reason: Reason) -> Reason | None:
    """A group that an update used counts as used, whatever removes it."""
    return reason if pooled.uses == 0 else None
