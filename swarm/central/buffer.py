"""Groups that wait for a learner's update, ordered by the version that sampled them; stale ones are dropped.

add ──▶ held, oldest version first ──take──▶ in the open update ──settle──▶ gone
              │                                   │
              └── too old, or one too many        └── in `dump` until then: a restart learns from it again
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from swarm.groups.versions import oldest_version
from swarm.reasons import Reason
from swarm.sapo.pool import PooledGroup
from swarm.types import GradedGroup


class ReplayBuffer:
    """Groups whose tokens are all at most `max_staleness` versions old when taken."""

    def __init__(self, max_staleness: int, max_groups: int) -> None:
        """An empty buffer; S = `max_staleness`, 0 for strictly on-policy."""
        self._max_staleness = max_staleness
        self._max_groups = max_groups
        self._held: dict[str, PooledGroup] = {}
        self._taken: dict[str, PooledGroup] = {}

    def __len__(self) -> int:
        """Groups held, without those in the open update."""
        return len(self._held)

    def __contains__(self, content_id: object) -> bool:
        """Whether a group is held or in the open update."""
        return content_id in self._held or content_id in self._taken

    @property
    def is_full(self) -> bool:
        """Whether one more group would displace another."""
        return len(self._held) >= self._max_groups

    def add(self, content_id: str, graded: GradedGroup, version: int, now: float) -> Counter[Reason]:
        """Add a group while the policy is at `version`.

        Returns the reasons of groups that left or did not enter: `stale_version`, `buffer_full`. The oldest version
        leaves first. Raises `ValueError` for an id already held: the caller deduplicates.
        """
        if content_id in self:
            raise ValueError(f"group {content_id} is already in the buffer")
        self._held[content_id] = PooledGroup(content_id, graded, now)
        left = self.advance(version)
        while len(self._held) > self._max_groups:
            del self._held[min(self._held, key=self._age)]
            left[Reason.BUFFER_FULL] += 1
        return left

    def advance(self, version: int) -> Counter[Reason]:
        """Discard groups that are too old for a policy at `version`; returns their `stale_version` count."""
        stale = [key for key, held in self._held.items() if not self._admissible(held, version)]
        for key in stale:
            del self._held[key]
        return Counter({Reason.STALE_VERSION: len(stale)}) if stale else Counter()

    def take(self, version: int, num_rollouts: int) -> list[GradedGroup]:
        """Groups with `num_rollouts` completions for the open update, or all there are; the last group may exceed it.

        The oldest version comes first: newest-first would let long completions go stale more often than short ones.
        They stay until `settle`.
        """
        taken: list[GradedGroup] = []
        for key in sorted(self._held, key=self._age):
            if num_rollouts <= 0:
                break
            if self._admissible(self._held[key], version):
                self._taken[key] = self._held.pop(key)
                taken.append(self._taken[key].graded)
                num_rollouts -= len(taken[-1].rewards)
        return taken

    def settle(self) -> list[GradedGroup]:
        """The open update was made: release its groups and return them."""
        settled = [held.graded for held in self._taken.values()]
        self._taken.clear()
        return settled

    def give_back(self) -> None:
        """The open update was abandoned: hold its groups again."""
        self._held, self._taken = {**self._taken, **self._held}, {}

    def num_rollouts(self) -> int:
        """Completions held, without those in the open update."""
        return sum(len(held.graded.rewards) for held in self._held.values())

    def num_unused(self) -> int:
        """Groups that no completed update has used."""
        return len(self._held) + len(self._taken)

    def dump(self) -> list[PooledGroup]:
        """Every group that no completed update has used, for a checkpoint."""
        return [*self._taken.values(), *self._held.values()]

    def restore(self, groups: Iterable[PooledGroup]) -> None:
        """Restore what `dump` returned."""
        self._held = {held.content_id: held for held in groups}
        self._taken = {}

    def _admissible(self, held: PooledGroup, version: int) -> bool:
        return version - oldest_version(held.graded.group) <= self._max_staleness

    def _age(self, content_id: str) -> int:
        return oldest_version(self._held[content_id].graded.group)
