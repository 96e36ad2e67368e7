"""Received groups that nobody has checked yet, and those on offer: bounded in count, memory and age, fair between peers
and accounts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

from swarm.reasons import Reason
from swarm.types import OfferedGroup, ReceivedGroup

MAX_BYTES = 64 * 2**20
"""Memory of all received groups before their grading is finished; at least one is always admitted."""
MAX_PART = 4
"""Groups on one account take at most 1 / MAX_PART of it."""


class Waiting:
    """Ordered from the oldest. Methods return what left unchecked, with the reason."""

    def __init__(self, max_per_peer: int, max_groups: float = math.inf, max_age_s: float = math.inf) -> None:
        """Empty. `max_per_peer` includes the groups of a peer that are being graded."""
        self._max_per_peer = max_per_peer
        self._max_groups = max_groups
        self._max_age_s = max_age_s
        self._groups: dict[str, ReceivedGroup] = {}

    def __len__(self) -> int:
        """Groups that wait, offers included."""
        return len(self._groups)

    def num_here(self) -> int:
        """Groups that wait, without those on offer."""
        return sum(each.is_here for each in self)

    def __contains__(self, key: object) -> bool:
        """Whether a group or an offer waits."""
        return key in self._groups

    def __iter__(self) -> Iterator[ReceivedGroup]:
        """All, oldest first."""
        return iter(list(self._groups.values()))

    def has_group(self, key: str) -> bool:
        """Whether a group waits that is not merely on offer."""
        return key in self._groups and self._groups[key].is_here

    def pop(self, key: str) -> ReceivedGroup:
        """Remove a group or an offer. Raises `KeyError`."""
        return self._groups.pop(key)

    def expire(self, now: float) -> list[tuple[ReceivedGroup, Reason]]:
        """Remove groups past their age."""
        old = [each for each in self if now - each.arrived_at > min(self._max_age_s, _life_s(each))]
        return [(self.pop(each.key), Reason.EXPIRED) for each in old]

    def enter(self, new: ReceivedGroup, grading: Collection[ReceivedGroup]) -> list[tuple[ReceivedGroup, Reason]]:
        """Add a group beside those that are being graded. Returns what left for it, or the group itself.

        A peer or an account at its own limit loses its oldest group (`peer_quota`); when all together are too many, the
        account with the most loses its oldest (`not_needed`). Where none of these waits, the new group is refused. A
        group replaces all offers of it.
        """
        self._groups.pop(new.key, None)
        if new.is_here:
            for each in self:
                if each.content_id == new.content_id:
                    self.pop(each.key)
        left: list[tuple[ReceivedGroup, Reason]] = []
        of_peer = [each for each in grading if each.peer_id == new.peer_id]
        of_account = [each for each in grading if each.account == new.account]
        admitted = (
            self._displace(
                left,
                Reason.PEER_QUOTA,
                lambda: len(of_peer) + sum(map(_same_peer(new), self)) >= self._max_per_peer,
                lambda: filter(_same_peer(new), self),
            )
            and self._displace(
                left,
                Reason.PEER_QUOTA,
                lambda: _too_many([*of_account, *filter(_same_account(new), self)], new, MAX_BYTES // MAX_PART),
                lambda: filter(_same_account(new), self),
            )
            and self._displace(
                left,
                Reason.PEER_QUOTA,
                lambda: _too_many([*grading, *self], new, MAX_BYTES),
                lambda: self._of_the_most([*grading, *self], new, lambda each: each.num_bytes),
            )
            and self._displace(
                left,
                Reason.NOT_NEEDED,
                lambda: len(self) >= self._max_groups,
                lambda: self._of_the_most(self, new, lambda each: 1),
            )
        )
        if not admitted:
            return [*left, (new, Reason.PEER_QUOTA)]
        self._groups[new.key] = new
        return left

    def _displace(
        self,
        left: list[tuple[ReceivedGroup, Reason]],
        reason: Reason,
        is_full: Callable[[], bool],
        victims: Callable[[], Iterable[ReceivedGroup]],
    ) -> bool:
        """Remove victims, oldest first, while there is no room; whether there is room."""
        while is_full():
            if (oldest := next(iter(victims()), None)) is None:
                return False
            left.append((self.pop(oldest.key), reason))
        return True

    def _of_the_most(
        self, every: Iterable[ReceivedGroup], new: ReceivedGroup, size: Callable[[ReceivedGroup], int]
    ) -> Iterator[ReceivedGroup]:
        """The waiting groups of the account with the most; of several, that of the new group."""
        totals = Counter({new.account: size(new)})
        for each in every:
            totals[each.account] += size(each)
        most = max(totals, key=lambda account: (totals[account], account == new.account))
        return (each for each in self if each.account == most)


def _life_s(received: ReceivedGroup) -> float:
    """Seconds after its arrival for which a group can be had."""
    return float(received.content.offer.life_s) if isinstance(received.content, OfferedGroup) else math.inf


def _same_peer(new: ReceivedGroup) -> Callable[[ReceivedGroup], bool]:
    return lambda each: each.peer_id == new.peer_id


def _same_account(new: ReceivedGroup) -> Callable[[ReceivedGroup], bool]:
    return lambda each: each.account == new.account


def _too_many(held: Collection[ReceivedGroup], new: ReceivedGroup, max_bytes: int) -> bool:
    return bool(held) and sum(each.num_bytes for each in held) + new.num_bytes > max_bytes
