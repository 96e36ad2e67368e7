"""Who may still hand records to this node: decided by who it is and by lengths, before anything is verified or opened.

    gossip   the author   proven: a member's budget; connected: a newcomer's; all others together: one newcomer's
    repair   the helper   a member's budget for all that it gives, and of that a newcomer's for authors not proven

Any number of identities behind one connection get what one newcomer gets. All newcomers together, gone ones included,
get as much as the newcomers that a node dials, or that are connected. An author is proven once what it sent was of use
here; a node that judges nobody takes those for proven that are connected.
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
"""So many may come at once: as many as a node dials."""
STRANGERS = ""
"""Who pays for what gossip brings from authors that are neither proven nor connected."""


class Budget(Struct, frozen=True):
    """What one payer may have taken in."""

    records: float
    """At once."""
    num_bytes: float
    """At once."""
    records_per_min: float
    bytes_per_min: float


class _Purse(Struct):
    records: float
    num_bytes: float
    filled_at: float


class Admission:
    """Budgets of records and bytes, bounded in number; pure but for the clock. For one thread, but for `proven`."""

    def __init__(self, settings: NetworkSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """Nobody is proven, and nobody has been judged."""
        safety = settings.safety
        self.proven: frozenset[str] | None = None
        """Authors that were of use here; None while nobody judges."""
        self._clock = clock
        # A peer that comes late is given all that a shelf holds, by one helper.
        self._member = Budget(
            max(safety.groups_per_min, settings.shelf_records),
            max(safety.bytes_per_min, settings.shelf_bytes),
            safety.groups_per_min,
            safety.bytes_per_min,
        )
        # More at once than the inbox holds would be of no use.
        self._newcomer = Budget(
            settings.inbox_records,
            settings.inbox_bytes,
            safety.newcomer_groups_per_min,
            safety.newcomer_bytes_per_min,
        )
        self._purses: OrderedDict[tuple[str, str], _Purse] = OrderedDict()

    def payer(self, author: str, connected: Collection[str]) -> str:
        """On whose account an author's gossip goes: its own, or that of all strangers."""
        return author if author in connected or self._is_proven(author, connected) else STRANGERS

    def hears(self, author: str, connected: Collection[str], num_bytes: int) -> bool:
        """Whether a record may be taken in that gossip brought; `num_bytes` is what it comes to when it is opened."""
        if self._is_proven(author, connected):
            return self._spend("heard", author, self._member, num_bytes)
        return self._spend_as_newcomer("heard", self.payer(author, connected), connected, num_bytes)

    def is_given(self, helper: str, author: str, connected: Collection[str], sent_bytes: int, num_bytes: int) -> bool:
        """Whether a record may be taken in that `helper` gave in the name of `author`, which nobody has verified."""
        if not self._spend("given", helper, self._member, sent_bytes):
            return False
        if self._is_proven(author, connected):
            return True
        return self._spend_as_newcomer("strangers", helper, connected, num_bytes)

    def _is_proven(self, author: str, connected: Collection[str]) -> bool:
        return author in (connected if self.proven is None else self.proven)

    def _spend_as_newcomer(self, what: str, payer: str, connected: Collection[str], num_bytes: int) -> bool:
        """From its own purse, and from that of all newcomers: who comes back under other names finds it no fuller."""
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
