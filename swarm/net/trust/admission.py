"""Admission: which peers may still hand records to this node, by identity and size, before verification or decoding.

    gossip   the author   proven: a member's budget; connected: a newcomer's; all others together: one newcomer's
    repair   the helper   a member's budget in total, of which a newcomer's for authors that are not proven

All identities behind one connection share one newcomer's budget. All newcomers together, including those that left, get
the budgets of as many newcomers as a node dials or has connected. An author is proven once its groups were useful here;
a node that judges nobody treats connected authors as proven.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection

import msgspec
from msgspec import Struct

from swarm.net.config import NetworkSettings

MAX_PURSES = 2_048
CROWD = 32
"""Number of newcomer budgets that all newcomers share: as many as a node dials."""
STRANGERS = ""
"""Payer for gossip of authors that are neither proven nor connected."""


class Budget(Struct, frozen=True):
    """Budget of one payer."""

    records: float
    """Burst."""
    num_bytes: float
    """Burst."""
    records_per_min: float
    bytes_per_min: float


class _Purse(Struct):
    records: float
    num_bytes: float
    filled_at: float


class Admission:
    """Budgets of records and bytes, bounded in number; pure but for the clock. Not thread-safe except `proven`."""

    def __init__(self, settings: NetworkSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """No authors are proven or judged yet."""
        safety = settings.safety
        self.proven: frozenset[str] | None = None
        """Authors that were useful here; None while nobody judges."""
        self._clock = clock
        # One helper may send a late peer everything that a shelf holds.
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
        self._purses: OrderedDict[tuple[str, str], _Purse] = OrderedDict()

    def payer(self, author: str, connected: Collection[str]) -> str:
        """The account for an author's gossip: its own, or the one that all strangers share."""
        return author if author in connected or self._is_proven(author, connected) else STRANGERS

    def hears(self, author: str, connected: Collection[str], num_bytes: int) -> bool:
        """Whether a record from gossip may be accepted; `num_bytes` is its decompressed size."""
        if self._is_proven(author, connected):
            return self._spend("heard", author, self._member, num_bytes)
        return self._spend_as_newcomer("heard", self.payer(author, connected), connected, num_bytes)

    def is_given(self, helper: str, author: str, connected: Collection[str], sent_bytes: int, num_bytes: int) -> bool:
        """Whether a record from `helper` may be accepted; `author` is not verified yet."""
        if not self._spend("given", helper, self._member, sent_bytes):
            return False
        if self._is_proven(author, connected):
            return True
        return self._spend_as_newcomer("strangers", helper, connected, num_bytes)

    def _is_proven(self, author: str, connected: Collection[str]) -> bool:
        return author in (connected if self.proven is None else self.proven)

    def _spend_as_newcomer(self, what: str, payer: str, connected: Collection[str], num_bytes: int) -> bool:
        """Charge the payer's budget and that of all newcomers, so that a new name does not give a fresh budget."""
        one, crowd = self._newcomer, max(CROWD, 1 + len(connected))
        everyone = Budget(*(crowd * limit for limit in msgspec.structs.astuple(one)))
        return self._spend(what, payer, one, num_bytes) and self._spend("newcomers", "", everyone, num_bytes)

    def _spend(self, what: str, payer: str, budget: Budget, num_bytes: int) -> bool:
        now = self._clock()
        purse = self._purses.setdefault((what, payer), _Purse(budget.records, budget.num_bytes, now))
        self._purses.move_to_end((what, payer))
        if len(self._purses) > MAX_PURSES:
            self._purses.popitem(last=False)
        minutes = (now - purse.filled_at) / 60
        purse.filled_at = now
        purse.records = min(budget.records, purse.records + minutes * budget.records_per_min)
        purse.num_bytes = min(budget.num_bytes, purse.num_bytes + minutes * budget.bytes_per_min)
        if purse.records < 1 or purse.num_bytes < num_bytes:
            return False
        purse.records -= 1
        purse.num_bytes -= num_bytes
        return True
