"""Admission of records: which peers may still send records, by identity and size, before verification or decoding.

    gossip   the author   proven: a member's budget; connected: a newcomer's
             the helper   for all other authors: a newcomer's for groups, and four for offers, which come from everybody
                          in a large swarm
    repair   the helper   a member's budget in total, of which a newcomer's for authors that are not proven

All identities behind one connection share one newcomer's budget. All newcomers together, including those that left, get
the budgets of as many newcomers as a node dials or has connected. An author is proven once its groups were useful here;
a node without judgements treats connected authors as proven.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

import msgspec
from msgspec import Struct

from swarm.lru import LruDict
from swarm.net.bandwidth import TokenBucket
from swarm.net.config import NetworkSettings

MAX_BUCKETS = 2_048
NEWCOMER_SHARES = 32
"""Number of newcomer budgets that all newcomers share: as many as a node dials."""
UNCONNECTED = ""
"""Payer for downloads from authors that are neither proven nor connected."""
OFFER_SHARES = 4
"""Newcomer budgets for the offers that a helper hands over of such authors: small records, of which members send more
than groups. At the defaults 40 records per second, some more than `offers_per_s`."""


class Budget(Struct, frozen=True):
    """Budget of one account."""

    records: float
    """Burst."""
    num_bytes: float
    """Burst."""
    records_per_min: float
    bytes_per_min: float


_Payer = tuple[str, str, Budget]
"""Kind of traffic, account, and its budget."""


class RecordAdmission:
    """Budgets of records and bytes, bounded in number; pure but for the clock. Not thread-safe except `proven`."""

    def __init__(self, settings: NetworkSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """No authors are proven or judged yet."""
        safety = settings.safety
        self.proven: frozenset[str] | None = None
        """Authors that were useful here; None on a node that judges none."""
        self._clock = clock
        # One helper may send a late peer everything that its store holds.
        self._member = Budget(
            max(safety.groups_per_min, settings.shelf_records),
            max(safety.bytes_per_min, settings.shelf_bytes),
            safety.groups_per_min,
            safety.bytes_per_min,
        )
        # A burst larger than the inbox would be useless.
        self._newcomer = Budget(
            settings.inbox_records,
            settings.inbox_bytes,
            safety.newcomer_groups_per_min,
            safety.newcomer_bytes_per_min,
        )
        self._buckets = LruDict[tuple[str, str], tuple[TokenBucket, TokenBucket]](MAX_BUCKETS)
        """Buckets of records and of bytes, by what is bounded and the account."""

    def account(self, author: str, connected: Collection[str], helper: str = UNCONNECTED) -> str:
        """The account for an author's records: its own, or that of the helper who handed them over."""
        return author if author in connected or self.is_proven(author, connected) else helper

    def has_room_for_gossip(
        self, helper: str, author: str, connected: Collection[str], num_bytes: int, *, are_offers: bool = False
    ) -> bool:
        """Whether `admits_gossip` would accept a record. Nothing is charged: `author` need not be verified."""
        return self._have(self._gossip_payers(helper, author, connected, are_offers), num_bytes)

    def admits_gossip(
        self, helper: str, author: str, connected: Collection[str], num_bytes: int, *, are_offers: bool = False
    ) -> bool:
        """Whether a record from a helper's feed may be accepted; `num_bytes` is its decompressed size.

        It is charged to `author`, so that must be verified, or the helper itself.
        """
        return self._spend(self._gossip_payers(helper, author, connected, are_offers), num_bytes)

    def admits_repair(
        self, helper: str, author: str, connected: Collection[str], sent_bytes: int, num_bytes: int
    ) -> bool:
        """Whether a record from `helper` may be accepted; `author` is not verified yet."""
        if not self._spend([("repair", helper, self._member)], sent_bytes):
            return False
        if self.is_proven(author, connected):
            return True
        return self._spend(self._newcomer_payers("repair of newcomers", helper, connected), num_bytes)

    def has_merit(self, peer_id: str) -> bool:
        """Whether a peer has been useful here."""
        return peer_id in (self.proven or ())

    def is_proven(self, author: str, connected: Collection[str]) -> bool:
        """Whether an author has been useful here; on a node that judges none, whether it is connected."""
        return author in (connected if self.proven is None else self.proven)

    def _gossip_payers(self, helper: str, author: str, connected: Collection[str], are_offers: bool) -> list[_Payer]:
        if self.is_proven(author, connected):
            return [("gossip", author, self._member)]
        if author in connected:
            return self._newcomer_payers("gossip", author, connected)
        if are_offers:
            return self._newcomer_payers("offers handed over", helper, connected, OFFER_SHARES)
        return self._newcomer_payers("handed over", helper, connected)

    def _newcomer_payers(self, what: str, account: str, connected: Collection[str], shares: int = 1) -> list[_Payer]:
        """The account, and all newcomers together, so that a new name does not give a fresh budget."""
        everyone = _times(self._newcomer, max(NEWCOMER_SHARES, 1 + len(connected)))
        return [(what, account, _times(self._newcomer, shares)), ("newcomers", "", everyone)]

    def _spend(self, payers: Sequence[_Payer], num_bytes: int) -> bool:
        """Charge a record to all of these; nothing if one of them cannot pay."""
        if not self._have(payers, num_bytes):
            return False
        now = self._clock()
        for payer in payers:
            records, bytes_ = self._paid_from(payer)
            records.spend(1, now)
            bytes_.spend(num_bytes, now)
        return True

    def _have(self, payers: Sequence[_Payer], num_bytes: int) -> bool:
        now = self._clock()
        buckets = map(self._paid_from, payers)
        return all(records.left(now) >= 1 and bytes_.left(now) >= num_bytes for records, bytes_ in buckets)

    def _paid_from(self, payer: _Payer) -> tuple[TokenBucket, TokenBucket]:
        """The payer's buckets, whose limits are now those of its budget: that of all newcomers varies."""
        what, account, budget = payer
        limits = (budget.records_per_min / 60, budget.records), (budget.bytes_per_min / 60, budget.num_bytes)
        buckets = self._buckets.get((what, account))
        if buckets is None:
            buckets = self._buckets[what, account] = (TokenBucket(*limits[0]), TokenBucket(*limits[1]))
        for bucket, (per_s, burst) in zip(buckets, limits, strict=True):
            bucket.per_s, bucket.burst = per_s, burst
        return buckets


def _times(budget: Budget, shares: int) -> Budget:
    return Budget(*(shares * limit for limit in msgspec.structs.astuple(budget)))
