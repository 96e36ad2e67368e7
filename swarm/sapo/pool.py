"""Received groups waiting to be learned from: bounded, deduplicated by the caller's ids, with a quota a peer, aged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from msgspec import Struct
from pydantic import Field

from swarm.reasons import Reason
from swarm.settings import Settings
from swarm.types import GradedGroup


class PoolSettings(Settings):
    """How long received groups stay available."""

    max_groups: int = Field(128, ge=1)
    max_age_s: float = Field(600.0, gt=0)
    """Groups older than this at the receiver are dropped as `expired`."""
    max_uses: int = Field(1, ge=1)
    """How many updates a group may take part in before it leaves the pool."""
    max_share_per_peer: float = Field(0.5, gt=0, le=1)
    """Largest part of `max_groups` that one peer's groups may hold, beyond it that peer's oldest goes; and of the queue
    for grading, beyond it that peer's newest do not enter. In the pool newcomers are one peer."""


class PooledGroup(Struct):
    """A group in the pool."""

    content_id: str
    graded: GradedGroup
    arrived_at: float
    """Seconds on the clock given to `add`."""
    uses: int = 0


class Pool:
    """Oldest first; every departure other than use is returned as a reason, for the ledger."""

    def __init__(self, settings: PoolSettings) -> None:
        """An empty pool."""
        self._settings = settings
        self._groups: dict[str, PooledGroup] = {}

    def __len__(self) -> int:
        """Groups available, used ones included."""
        return len(self._groups)

    def __contains__(self, content_id: object) -> bool:
        """Whether a group is available."""
        return content_id in self._groups

    def add(
        self,
        content_id: str,
        graded: GradedGroup,
        now: float,
        author_of: Callable[[str], str] = lambda peer_id: peer_id,
    ) -> Counter[Reason]:
        """Add a group that has signal. Returns what had to leave for it: `peer_quota`, `pool_full`.

        A full pool gives up the oldest group of whoever has most: nobody's flood washes the others out.

        Raises `ValueError` when the id is already there: deduplication comes first.
        """
        if content_id in self._groups:
            raise ValueError(f"group {content_id} is already in the pool")
        self._groups[content_id] = PooledGroup(content_id, graded, now)
        left: Counter[Reason] = Counter()
        author = author_of(graded.group.peer_id)
        own = [g for g in self._groups.values() if author_of(g.graded.group.peer_id) == author]
        quota = max(1, int(self._settings.max_groups * self._settings.max_share_per_peer))
        # More than one too many only after a restart with smaller settings.
        for pooled in own[: max(0, len(own) - quota)]:
            self._drop(pooled, _fate(pooled, Reason.PEER_QUOTA), left)
        while len(self._groups) > self._settings.max_groups:
            authors = {g.content_id: author_of(g.graded.group.peer_id) for g in self._groups.values()}
            ((most, _),) = Counter(authors.values()).most_common(1)
            oldest = next(content_id for content_id, each in authors.items() if each == most)
            self._drop(self._groups[oldest], _fate(self._groups[oldest], Reason.POOL_FULL), left)
        return left

    def expire(self, now: float) -> Counter[Reason]:
        """Drop groups past their age; returns `expired` counts of those never used."""
        left: Counter[Reason] = Counter()
        for pooled in list(self._groups.values()):
            if now - pooled.arrived_at <= self._settings.max_age_s:
                break
            self._drop(pooled, _fate(pooled, Reason.EXPIRED), left)
        return left

    def candidates(self) -> list[tuple[str, GradedGroup]]:
        """(content id, group) of everything available, oldest first."""
        return [(pooled.content_id, pooled.graded) for pooled in self._groups.values()]

    def use(self, content_ids: Iterable[str]) -> int:
        """Mark groups as used in an update; those at their limit leave. Returns how many had not been used before."""
        first = 0
        for content_id in content_ids:
            pooled = self._groups[content_id]
            first += pooled.uses == 0
            pooled.uses += 1
            if pooled.uses >= self._settings.max_uses:
                del self._groups[content_id]
        return first

    def refuse(self, content_ids: Iterable[str]) -> int:
        """Drop groups that cannot teach after all. Returns how many had never been used."""
        return sum(self._groups.pop(content_id).uses == 0 for content_id in content_ids)

    def num_unused(self) -> int:
        """Groups that have not taken part in any update."""
        return sum(pooled.uses == 0 for pooled in self._groups.values())

    def dump(self) -> list[PooledGroup]:
        """Everything, for a checkpoint."""
        return list(self._groups.values())

    def restore(self, groups: Iterable[PooledGroup]) -> None:
        """What `dump` gave."""
        self._groups = {pooled.content_id: pooled for pooled in groups}

    def _drop(self, pooled: PooledGroup, reason: Reason | None, left: Counter[Reason]) -> None:
        del self._groups[pooled.content_id]
        if reason is not None:
            left[reason] += 1


def _fate(pooled: PooledGroup, reason: Reason) -> Reason | None:
    """A group that taught at least once was used, whatever ends its stay."""
    return reason if pooled.uses == 0 else None
