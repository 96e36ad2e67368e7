"""Received groups that nobody has checked yet, and those on offer: bounded in count, memory and age, fair between peers
and accounts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

from msgspec import Struct

from swarm.reasons import Reason
from swarm.types import OfferedGroup, RolloutGroup

MAX_BYTES = 64 * 2**20
"""Memory of all received groups before their grading is finished; at least one is always admitted."""
MAX_PART = 4
"""Groups on one account take at most 1 / MAX_PART of it."""


class Received(Struct, frozen=True):
    """A group before its grading, or one on offer before it is fetched."""

    content_id: str
    content: RolloutGroup | OfferedGroup
    account: str
    """What it is charged to: its author, or the newcomers."""
    num_bytes: int
    """Memory of the group, or of the offer."""
    arrived_at: float = 0.0
    """Unix seconds."""

    @property
    def key(self) -> str:
        """Names a group by its content, and an offer also by who made it: anybody may offer another's content."""
        return f"{self.content_id}/{self.peer_id}" if isinstance(self.content, OfferedGroup) else self.content_id

    @property
    def peer_id(self) -> str:
        """Its author."""
        return self.content.peer_id

    @property
    def task(self) -> str:
        """Name of the question's task."""
        content = self.content
        return content.offer.task if isinstance(content, OfferedGroup) else content.question.task

    @property
    def rewards(self) -> tuple[float, ...]:
        """[G] as its author claims; of an offer, rewards of the same mean and deviation."""
        return self.content.offer.rewards if isinstance(self.content, OfferedGroup) else self.content.rewards

    @property
    def max_age_s(self) -> float:
        """Seconds after its arrival for which it can be had."""
        return float(self.content.offer.life_s) if isinstance(self.content, OfferedGroup) else math.inf


class WaitingLimits(Struct, frozen=True):
    """Limits of the groups that wait."""

    max_per_peer: int
    """Groups of one peer, those being graded included."""
    max_groups: float = math.inf
    max_age_s: float = math.inf


class Waiting:
    """Ordered from the oldest. Methods return what left unchecked, with the reason."""

    def __init__(self, limits: WaitingLimits) -> None:
        """Empty."""
        self._limits = limits
        self._groups: dict[str, Received] = {}

    def __len__(self) -> int:
        """Groups that wait, offers included."""
        return len(self._groups)

    def num_here(self) -> int:
        """Groups that wait, without those on offer."""
        return sum(isinstance(each.content, RolloutGroup) for each in self)

    def __contains__(self, key: object) -> bool:
        """Whether a group or an offer waits."""
        return key in self._groups

    def __iter__(self) -> Iterator[Received]:
        """All, oldest first."""
        return iter(list(self._groups.values()))

    def has_group(self, key: str) -> bool:
        """Whether a group waits that is not merely on offer."""
        return key in self._groups and isinstance(self._groups[key].content, RolloutGroup)

    def take(self, key: str) -> Received:
        """Remove a group or an offer. Raises `KeyError`."""
        return self._groups.pop(key)

    def expire(self, now: float) -> list[tuple[Received, Reason]]:
        """Remove groups past their age."""
        old = [each for each in self if now - each.arrived_at > min(self._limits.max_age_s, each.max_age_s)]
        return [(self.take(each.key), Reason.EXPIRED) for each in old]

    def add(self, new: Received, grading: Collection[Received]) -> list[tuple[Received, Reason]]:
        """Add a group beside those that are being graded. Returns what left for it, or the group itself.

        A peer or an account at its own limit loses its oldest group (`peer_quota`); when all together are too many, the
        account with the most loses its oldest (`not_needed`). Where none of these waits, the new group is refused. A
        group takes the place of all offers of it.
        """
        self._groups.pop(new.key, None)
        if isinstance(new.content, RolloutGroup):
            for each in self:
                if each.content_id == new.content_id:
                    self.take(each.key)
        left: list[tuple[Received, Reason]] = []
        of_peer = [each for each in grading if each.peer_id == new.peer_id]
        of_account = [each for each in grading if each.account == new.account]
        admitted = (
            self._displace(
                left,
                Reason.PEER_QUOTA,
                lambda: len(of_peer) + sum(map(_same_peer(new), self)) >= self._limits.max_per_peer,
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
                lambda: len(self) >= self._limits.max_groups,
                lambda: self._of_the_most(self, new, lambda each: 1),
            )
        )
        if not admitted:
            return [*left, (new, Reason.PEER_QUOTA)]
        self._groups[new.key] = new
        return left

    def _displace(
        self,
        left: list[tuple[Received, Reason]],
        reason: Reason,
        is_full: Callable[[], bool],
        victims: Callable[[], Iterable[Received]],
    ) -> bool:
        """Remove victims, oldest first, while there is no room; whether there is room."""
        while is_full():
            if (oldest := next(iter(victims()), None)) is None:
                return False
            left.append((self.take(oldest.key), reason))
        return True

    def _of_the_most(
        self, every: Iterable[Received], new: Received, size: Callable[[Received], int]
    ) -> Iterator[Received]:
        """The waiting groups of the account with the most; of several, that of the new group."""
        totals = Counter({new.account: size(new)})
        for each in every:
            totals[each.account] += size(each)
        most = max(totals, key=lambda account: (totals[account], account == new.account))
        return (each for each in self if each.account == most)


def _same_peer(new: Received) -> Callable[[Received], bool]:
    return lambda each: each.peer_id == new.peer_id


def _same_account(new: Received) -> Callable[[Received], bool]:
    return lambda each: each.account == new.account


def _too_many(held: Collection[Received], new: Received, max_bytes: int) -> bool:
    return bool(held) and sum(each.num_bytes for each in held) + new.num_bytes > max_bytes
