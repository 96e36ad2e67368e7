"""Records of the run, as they come in and go out.

offer                         -> shelf, outbox       (a large record: its announcement)
receive   gossip              -> shelf, inbox
mend      others' shelves     -> shelf, inbox        (what gossip did not bring)
complete  fetched downloads   -> shelf, inbox        (announced large records)

Before a record is opened it is decided whether its sender may publish it, whether it is news, and on whose account it
goes. A record that is refused is handed on to nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from swarm.errors import PeerUnreachable, Refusal
from swarm.net.config import NetworkSettings
from swarm.net.counters import Counters
from swarm.net.membership.current_run import CurrentRun
from swarm.net.membership.known_peers import KnownPeers
from swarm.net.records.identity import Identity
from swarm.net.records.large import INLINE_BYTES, Download, Waiting, announce
from swarm.net.records.mailbox import Mailbox
from swarm.net.records.shelf import Shelf, record_id
from swarm.net.records.wire import (
    Announcement,
    Limits,
    RefusedRecord,
    check_seal,
    open_announcement,
    opened_bytes,
    outside,
    read_group,
)
from swarm.net.trust.admission import Admission
from swarm.net.trust.complaints import Complaints
from swarm.reasons import Reason

OUTBOX_RECORDS = 64
OUTBOX_BYTES = 16 * 2**20
"""A large record waits as its announcement."""
BY_OTHER_RULES = frozenset({Reason.LIMITS, Reason.OVERSIZED, Reason.SCHEMA_VERSION})
"""What an honest helper may hold whose settings or version are not those of this node."""


class RecordTraffic:
    """Mailboxes, shelf, announced downloads, and who may still hand in how much. For the network thread, but for
    `offer`, `trust` and the mailboxes.
    """

    def __init__(
        self,
        settings: NetworkSettings,
        identity: Identity,
        run: CurrentRun,
        peers: KnownPeers,
        complaints: Complaints,
        counters: Counters,
    ) -> None:
        """Nothing has come in yet."""
        self.settings = settings
        self.identity = identity
        self.run = run
        self.peers = peers
        self.complaints = complaints
        self.counters = counters
        self.inbox = Mailbox(settings.inbox_records, settings.inbox_bytes)
        self.outbox = Mailbox(OUTBOX_RECORDS, OUTBOX_BYTES)
        self.shelf = Shelf(settings.shelf_records, settings.shelf_bytes, settings.backfill_s)
        self.large = Waiting()
        self.admission = Admission(settings)
        self._limits = Limits(settings.max_record_bytes, settings.max_completion_chars)
        self.on_announcement: Callable[[], None] = lambda: None
        """Called when a download is queued."""

    def offer(self, record: bytes) -> None:
        """Publish a record in the run, which must be known: by gossip, and on the shelf for those whom that misses."""
        assert self.run.manifest is not None
        own = self.identity.peer_id
        if len(record) > INLINE_BYTES:
            self.shelf.add(record, listed=False, owner=own)
            record = announce(self.identity, self.run.manifest.run_id, record)
        self.shelf.add(record, owner=own)
        self.outbox.put(record)

    def receive(self, sender: str, record: bytes) -> None:
        """Take a gossip message in."""
        if sender == self.identity.peer_id:
            return
        if sender in self.peers.banned:
            self.counters.add("banned_gossip")
            return
        if not self.is_its_own(sender, record) or not self._is_news(record):
            return
        if not self.admission.hears(sender, self.peers.connected, self._cost(record)):
            self.counters.add("drop_over_budget")
            return
        payer = self.admission.payer(sender, self.peers.connected)
        try:
            self._take_in(payer, record, 0.0)
        except Refusal as refusal:
            # For the exchange to count by its reason; but not for others to have from here.
            self.shelf.note(record_id(record))
            self.inbox.put(RefusedRecord.of(record, refusal), payer)
        self.counters.add("delivered")

    def is_its_own(self, author: str, record: bytes) -> bool:
        """Whether the author of a gossip message, whom its signature proves, may publish this record.

        Everybody publishes what is his own: a record in another's name is forged or replayed.
        """
        label = outside(record)
        if label is None or label[1] == author:
            return True
        self.counters.add("drop_not_its_own")
        return False

    def mend(self, helper: str, record: bytes, age_s: float) -> None:
        """Take in a record that gossip did not bring; one from before this node's time is a backfill.

        Raises `PeerUnreachable` when no more is taken from this helper now, and when it gave what no honest one holds.
        """
        if not self._is_news(record):
            return
        label = outside(record)
        author = label[1] if label else helper
        if not self.admission.is_given(helper, author, self.peers.connected, len(record), self._cost(record)):
            self.counters.add("drop_over_budget")
            raise PeerUnreachable("it gave more of strangers' than is taken from one peer at a time")
        try:
            self._take_in(helper, record, age_s)
        except Refusal as refusal:
            self.shelf.note(record_id(record))
            self.counters.add("refused_repairs")
            if refusal.reason in BY_OTHER_RULES:
                return
            self.complaints.add(helper, Reason.BAD_GIFT)
            raise PeerUnreachable(f"it gave a record that must be refused: {refusal}") from refusal
        before = age_s > time.monotonic() - self.run.since
        self.counters.add("backfilled" if before else "repaired")

    def _cost(self, record: bytes) -> int:
        """Bytes to open a record; one that says it comes to more than is allowed will not be opened."""
        num_bytes = opened_bytes(record)
        return num_bytes if num_bytes <= self._limits.max_payload_bytes else len(record)

    def _is_news(self, record: bytes) -> bool:
        """Whether a record is worth a look, by its length, the name on it and its id."""
        if len(record) > min(self.settings.max_record_bytes, INLINE_BYTES):
            self.counters.add("drop_oversized")
            return False
        label = outside(record)
        if label is not None and label[1] in self.peers.banned:
            self.counters.add("banned_gossip")
            return False
        if self.shelf.knows(record_id(record)):
            self.counters.add("duplicates")
            return False
        return True

    def _take_in(self, payer: str, record: bytes, age_s: float) -> None:
        """Open a record, then keep it for others and for this node's own use, on the account of `payer`.

        Raises `Refusal` for one that is not signed, or of no use to anybody.
        """
        assert self.run.manifest is not None
        run_id = self.run.manifest.run_id
        signed = check_seal(record, run_id, INLINE_BYTES)
        label = outside(record)
        if label is not None and label[0] == "large":
            announcement = open_announcement(signed, run_id, self.settings.max_record_bytes)
            self.shelf.add(signed, age_s, owner=payer)
            self._expect(announcement, payer)
        else:
            group = read_group(signed, run_id, self._limits)
            self.shelf.add(signed, age_s, owner=payer)
            self.inbox.put(signed, payer, group.memory_bytes)

    def _expect(self, announcement: Announcement, payer: str) -> None:
        """Queue the download of an announced record."""
        if announcement.peer_id == self.identity.peer_id or self.shelf.knows(announcement.record_id):
            return
        if not self.large.add(announcement, time.monotonic() + self.settings.backfill_s, payer):
            self.counters.add("drop_announced")
        self.on_announcement()

    def complete(self, download: Download) -> None:
        """Take in a large record that was fetched. Raises `PeerUnreachable` when it is not the announced one."""
        assert self.run.manifest is not None
        record, payer = download.record(), download.payer
        if self.shelf.knows(download.announcement.record_id):
            return
        self.counters.add("fetched")
        try:
            signed = check_seal(record, self.run.manifest.run_id, self.settings.max_record_bytes)
            group = read_group(signed, self.run.manifest.run_id, self._limits)
        except Refusal as refusal:
            self.shelf.note(record_id(record))
            self.inbox.put(RefusedRecord.of(record, refusal), payer)
        else:
            self.shelf.add(signed, listed=False, owner=payer)
            self.inbox.put(signed, payer, group.memory_bytes)

    def trust(self, peer_ids: Collection[str]) -> None:
        """Take in these authors' records at a member's rate, and all others' at a newcomer's."""
        self.admission.proven = frozenset(peer_ids)
