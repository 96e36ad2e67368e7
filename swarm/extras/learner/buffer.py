"""Groups that wait for a learner's update, ordered by the version that sampled them; stale ones are dropped.

add ──▶ held, oldest version first ──take──▶ in the open update ──settle──▶ gone
              │                                   │
              └── too old, or one too many        └── in `dump` until then: a restart learns from it again
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

from swarm.lru import LruDict
from swarm.protocols import NEWCOMERS
from swarm.reasons import Reason
from swarm.received.authors import AuthorOf, authors_of, fair_part, itself
from swarm.received.pool import PooledGroup
from swarm.types import GradedGroup, ReceivedGroup

LATE = 4.0
"""A worker delivers no more after this many of its usual times between two groups without one."""
SHORTEST_LATE_S = 5.0
GAPS = 8
"""Its usual time is a mean over about so many."""
MAX_SENDERS = 1_024


class _Flow(Struct):
    """When a worker's groups come."""

    at: float
    """The last."""
    gap_s: float = 0.0


class ReplayBuffer:
    """Groups whose tokens are all at most `max_staleness` versions old when taken, fair between workers.

    No worker gives more of an update than its fair part, R divided by the authors, while others have groups. All
    newcomers together are one author, and never give more while a worker that is not one delivers: the update then
    waits for its groups. Other workers fill slots that would stay empty.
    """

    def __init__(self, max_staleness: int, max_groups: int) -> None:
        """An empty buffer; S = `max_staleness`, 0 for strictly on-policy."""
        self._flows = LruDict[str, _Flow](MAX_SENDERS)
        self._max_staleness = max_staleness
        self._max_groups = max_groups
        self._held: dict[str, ReceivedGroup] = {}
        self._taken: dict[str, ReceivedGroup] = {}

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

    def admit(self, received: ReceivedGroup, version: int, now: float, author_of: AuthorOf = itself) -> Counter[Reason]:
        """Add a group while the policy is at `version`.

        Returns the reasons of groups that left or did not enter: `stale_version`, `buffer_full`. A full buffer drops
        the oldest version of the author with the most groups. Raises `ValueError` for an id already held: the caller
        deduplicates.
        """
        if received.content_id in self:
            raise ValueError(f"group {received.content_id} is already in the buffer")
        self._held[received.content_id] = received
        self._note(received.peer_id, now)
        left = self.advance(version)
        while len(self._held) > self._max_groups:
            del self._held[self._least_wanted(author_of)]
            left[Reason.BUFFER_FULL] += 1
        return left

    def advance(self, version: int) -> Counter[Reason]:
        """Discard groups that are too old for a policy at `version`; returns their `stale_version` count."""
        stale = [key for key, held in self._held.items() if not self._admissible(held, version)]
        for key in stale:
            del self._held[key]
        return Counter({Reason.STALE_VERSION: len(stale)}) if stale else Counter()

    def refuse(self, peer_id: str | None = None) -> int:
        """Discard the groups held, or those of one worker; returns their number."""
        unwanted = [key for key, held in self._held.items() if peer_id in (None, held.peer_id)]
        for key in unwanted:
            del self._held[key]
        return len(unwanted)

    def ready(self, version: int, num_rollouts: int, now: float = 0.0, author_of: AuthorOf = itself) -> list[str]:
        """Content ids of what `take` gives."""
        expected = [
            peer_id for peer_id, flow in self._flows.items() if now - flow.at <= max(SHORTEST_LATE_S, LATE * flow.gap_s)
        ]
        keys = authors_of({*expected, *_senders(self._held), *_senders(self._taken)}, author_of)
        fair = fair_part(num_rollouts + self.num_taken, len({*keys.values()}))
        given = Counter[str]()
        for held in self._taken.values():
            given[keys[held.peer_id]] += len(held.rewards)
        waiting = sorted((key for key in self._held if self._admissible(self._held[key], version)), key=self._age)
        others = any(keys[peer_id] != NEWCOMERS for peer_id in (*expected, *_senders(self._held)))
        chosen: dict[str, None] = {}
        for fills in (False, True):  # what others leave is given out once all have had their part
            for key in waiting:
                author, size = keys[self._held[key].peer_id], len(self._held[key].rewards)
                may = given[author] < fair or (fills and not (others and author == NEWCOMERS))
                if num_rollouts > 0 and may and key not in chosen:
                    chosen[key] = None
                    given[author] += size
                    num_rollouts -= size
        return sorted(chosen, key=self._age)

    def take(
        self, version: int, num_rollouts: int, now: float = 0.0, author_of: AuthorOf = itself
    ) -> list[GradedGroup]:
        """Groups with `num_rollouts` completions for the open update, or all there are; the last group may exceed it.

        The oldest version comes first: newest-first would let long completions go stale more often than short ones.
        They stay until `settle`.
        """
        taken = {key: self._held.pop(key) for key in self.ready(version, num_rollouts, now, author_of)}
        self._taken |= taken
        return [held.graded for held in taken.values()]

    def has_taken(self, peer_id: str) -> bool:
        """Whether a worker's groups are in the open update."""
        return peer_id in _senders(self._taken)

    @property
    def num_taken(self) -> int:
        """Completions in the open update."""
        return sum(len(held.rewards) for held in self._taken.values())

    def settle(self) -> list[GradedGroup]:
        """The open update was made: release its groups and return them."""
        settled = [held.graded for held in self._taken.values()]
        self._taken.clear()
        return settled

    def give_back(self) -> None:
        """The open update was abandoned: hold its groups again."""
        self._held, self._taken = {**self._taken, **self._held}, {}

    def num_rollouts(self, content_ids: Iterable[str] | None = None) -> int:
        """Completions held, without those in the open update; or those of these groups."""
        return sum(len(self._held[key].rewards) for key in (self._held if content_ids is None else content_ids))

    def num_unused(self) -> int:
        """Groups that no completed update has used."""
        return len(self._held) + len(self._taken)

    def dump(self) -> list[PooledGroup]:
        """Every group that no completed update has used, for a checkpoint."""
        return [PooledGroup.of(held) for held in (*self._taken.values(), *self._held.values())]

    def restore(self, groups: Iterable[PooledGroup]) -> None:
        """Restore what `dump` returned."""
        self._held = {saved.content_id: saved.received() for saved in groups}
        self._taken = {}

    def _admissible(self, held: ReceivedGroup, version: int) -> bool:
        return version - held.group.oldest_version <= self._max_staleness

    def _age(self, content_id: str) -> int:
        return self._held[content_id].group.oldest_version

    def _least_wanted(self, author_of: AuthorOf) -> str:
        authors = {key: author_of(held.peer_id) for key, held in self._held.items()}
        ((most, _),) = Counter(authors.values()).most_common(1)
        return min((key for key, author in authors.items() if author == most), key=self._age)

    def _note(self, peer_id: str, now: float) -> None:
        flow = self._flows.setdefault(peer_id, _Flow(now))
        flow.gap_s += (now - flow.at - flow.gap_s) / GAPS
        flow.at = now


def _senders(groups: Mapping[str, ReceivedGroup]) -> set[str]:
    return {held.peer_id for held in groups.values()}
