"""Received groups that are not graded yet, and those on offer: bounded in count, memory and age, fair between peers and
accounts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from swarm.fair_store import FairStore, Share
from swarm.reasons import Reason
from swarm.types import OfferedGroup, ReceivedGroup

MAX_BYTES = 64 * 2**20
"""Memory of all received groups before their grading is finished; at least one is always admitted."""
MAX_PART = 4
"""Groups on one account take at most 1 / MAX_PART of it."""


class Waiting:
    """Ordered from the oldest. Methods return what left ungraded, with the reason."""

    def __init__(self, max_per_peer: int, max_groups: float = math.inf, max_age_s: float = math.inf) -> None:
        """Empty. `max_per_peer` and the memory include groups that are being graded, `max_groups` does not."""
        account, peer = Share(max_bytes=MAX_BYTES // MAX_PART), Share(max_items=max_per_peer)
        self._groups = FairStore[str, ReceivedGroup](max_groups, MAX_BYTES, account, peer)
        self._grading: set[str] = set()
        self._max_age_s = max_age_s

    def __len__(self) -> int:
        """Groups that have arrived, those that are being graded included."""
        return len(self._grading) + sum(each.is_here for each in self)

    def __contains__(self, key: object) -> bool:
        """Whether a group or an offer waits or is being graded."""
        return key in self._groups

    def __iter__(self) -> Iterator[ReceivedGroup]:
        """Those that wait, offers included, oldest first."""
        return iter([self._groups[key] for key in self._groups if key not in self._grading])

    def enter(self, new: ReceivedGroup, is_chosen: bool = False) -> list[tuple[ReceivedGroup, Reason]]:
        """Add a group, to be graded at once if it `is_chosen`. Returns what left for it, which may be the group itself.

        A peer or an account at its limit loses its oldest group (`peer_quota`); when all together are too many, the
        account with the most loses its oldest (`not_needed`). A group replaces all offers of it.
        """
        if new.is_here:
            for each in self:
                if each.content_id == new.content_id:
                    self._groups.pop(each.key)
        num_bytes = min(new.num_bytes, MAX_BYTES)
        left = self._groups.add(new.key, new, new.account, new.peer_id, num_bytes=num_bytes, is_pinned=is_chosen)
        return [(each, Reason.NOT_NEEDED if limit == "items" else Reason.PEER_QUOTA) for each, limit in left]

    def remove(self, key: str) -> ReceivedGroup:
        """Remove a group or an offer, graded or not. Raises `KeyError`."""
        self._grading.discard(key)
        return self._groups.pop(key)

    def grade(self, key: str) -> ReceivedGroup:
        """A group is being graded: until it is removed it takes room and cannot be displaced. Raises `KeyError`."""
        self._grading.add(key)
        return self._groups.pin(key)

    def expire(self, now: float) -> list[tuple[ReceivedGroup, Reason]]:
        """Remove groups past their age."""
        old = [each for each in self if now - each.arrived_at > min(self._max_age_s, _life_s(each))]
        return [(self.remove(each.key), Reason.EXPIRED) for each in old]


def _life_s(received: ReceivedGroup) -> float:
    """Seconds after its arrival for which a group can be had."""
    return float(received.content.offer.life_s) if isinstance(received.content, OfferedGroup) else math.inf
