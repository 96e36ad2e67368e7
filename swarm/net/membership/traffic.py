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
from swarm.net.membership.versions import Versions
from swarm.net.records.envelope import SealedRecord, read_record
from swarm.net.records.identity import Identity
from swarm.net.records.large import INLINE_BYTES, Download, Waiting, announce
from swarm.net.records.mailbox import Mailbox
from swarm.net.records.shelf import Shelf, record_id
from swarm.net.records.wire import (
    Announcement,
    Limits,
    check_seal,
    open_announcement,
    open_group,
    refused,
)
from swarm.net.trust.admission import Admission
from swarm.net.trust.complaints import Complaints
from swarm.reasons import Reason
from swarm.types import Arrival, VerifiedGroup

OUTBOX_RECORDS = 64
OUTBOX_BYTES = 16 * 2**20
"""A large record waits as its announcement."""
BY_OTHER_RULES = frozenset(
    {Reason.LIMITS, Reason.OVERSIZED, Reason.SCHEMA_VERSION, Reason.UNKNOWN_KIND, Reason.UNKNOWN_QUESTION}
)
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
        versions: Versions,
    ) -> None:
        """Nothing has come in yet."""
        self.settings = settings
        self.identity = identity
        self.run = run
        self.peers = peers
        self.complaints = complaints
        self.counters = counters
        self.versions = versions
        self.inbox = Mailbox[Arrival](settings.inbox_records, settings.inbox_bytes)
        self.outbox = Mailbox[bytes](OUTBOX_RECORDS, OUTBOX_BYTES)
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
        self.outbox.put(record, len(record))

    def receive(self, sender: str, record: bytes) -> bool:
        """Take a gossip message in; whether others may have it from here.

        What cannot be read or used here may be of use to them: to those who speak another version.
        """
        if sender == self.identity.peer_id:
            return True
        if sender in self.peers.banned:
            self.counters.add("banned_gossip")
            return False
        if self._is_too_long(record):
            return False
        if self._is_known(record):
            return True
        payer = self.admission.payer(sender, self.peers.connected)
        try:
            sealed = read_record(record, INLINE_BYTES)
        except Refusal as refusal:
            if self._may_speak(sender, len(record)):
                self._refuse(record, refusal, sender, payer)
            return True
        if sealed.body.peer_id != sender:
            # Gossip proves its author, who publishes his own: a record in another's name is forged or replayed.
            self.counters.add("drop_not_its_own")
            return False
        if self._may_speak(sender, self._cost(sealed)):
            try:
                self._take_in(payer, sealed, 0.0)
                self.counters.add("delivered")
            except Refusal as refusal:
                self._refuse(record, refusal, sender, payer)
        return True

    def _may_speak(self, author: str, num_bytes: int) -> bool:
        """Whether a record that comes to so many bytes is within what gossip may bring of its author."""
        if self.admission.hears(author, self.peers.connected, num_bytes):
            return True
        self.counters.add("drop_over_budget")
        return False

    def _refuse(self, record: bytes, refusal: Refusal, sender: str, payer: str) -> None:
        """Remember a record that gossip brought for the exchange to count by its reason; not for others to have."""
        self.versions.refused(sender, refusal)
        self.shelf.note(record_id(record))
        self._put_refused(record, refusal, payer)
        self.counters.add("delivered")

    def mend(self, helper: str, record: bytes, age_s: float) -> None:
        """Take in a record that gossip did not bring; one from before this node's time is a backfill.

        Raises `PeerUnreachable` when no more is taken from this helper now, and when it gave what no honest one holds.
        """
        if self._is_too_long(record) or self._is_known(record):
            return
        try:
            sealed = read_record(record, INLINE_BYTES)
        except Refusal as refusal:
            self._check_gift(helper, helper, len(record), len(record))
            self._decline(helper, record, refusal)
            return
        author = sealed.body.peer_id
        if author in self.peers.banned:
            self.counters.add("banned_gossip")
            return
        self._check_gift(helper, author, len(record), self._cost(sealed))
        try:
            self._take_in(helper, sealed, age_s)
        except Refusal as refusal:
            self._decline(helper, record, refusal)
            return
        before = age_s > time.monotonic() - self.run.since
        self.counters.add("backfilled" if before else "repaired")

    def _check_gift(self, helper: str, author: str, sent_bytes: int, num_bytes: int) -> None:
        """Raises `PeerUnreachable` for a gift beyond what is taken from its helper."""
        if not self.admission.is_given(helper, author, self.peers.connected, sent_bytes, num_bytes):
            self.counters.add("drop_over_budget")
            raise PeerUnreachable("it gave more of strangers' than is taken from one peer at a time")

    def _decline(self, helper: str, record: bytes, refusal: Refusal) -> None:
        """Not ask for a record again. Raises `PeerUnreachable` for one that no honest helper holds."""
        self.versions.refused(helper, refusal)
        self.shelf.note(record_id(record))
        self.counters.add("refused_repairs")
        if refusal.reason not in BY_OTHER_RULES:
            self.complaints.add(helper, Reason.BAD_GIFT)
            raise PeerUnreachable(f"it gave a record that must be refused: {refusal}") from refusal

    def _cost(self, sealed: SealedRecord) -> int:
        """Bytes to open a record; one that says it comes to more than is allowed will not be opened."""
        stated = sealed.stated_bytes
        return stated if stated <= self._limits.max_payload_bytes else len(sealed.record)

    def _is_too_long(self, record: bytes) -> bool:
        if len(record) > min(self.settings.max_record_bytes, INLINE_BYTES):
            self.counters.add("drop_oversized")
            return True
        return False

    def _is_known(self, record: bytes) -> bool:
        if self.shelf.knows(record_id(record)):
            self.counters.add("duplicates")
            return True
        return False

    def _take_in(self, payer: str, sealed: SealedRecord, age_s: float) -> None:
        """Open a record, then keep it for others and for this node's own use, on the account of `payer`.

        Raises `Refusal` for one that is not signed, or of no use to anybody.
        """
        assert self.run.manifest is not None
        run_id = self.run.manifest.run_id
        signed = check_seal(sealed, run_id)
        self.versions.understood(sealed.body.peer_id)
        if sealed.body.kind == "large":
            announcement = open_announcement(signed, run_id, self.settings.max_record_bytes)
            self.shelf.add(signed.record, age_s, owner=payer)
            self._expect(announcement, payer)
        else:
            group = open_group(signed, self._limits)
            self.shelf.add(group.record, age_s, owner=payer)
            self._put(group, payer)

    def _put(self, group: VerifiedGroup, payer: str) -> None:
        self.inbox.put(group, len(group.record), payer, group.memory_bytes)

    def _put_refused(self, record: bytes, refusal: Refusal, payer: str) -> None:
        self.inbox.put(refused(refusal), len(record), payer)

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
            sealed = read_record(record, self.settings.max_record_bytes)
            group = open_group(check_seal(sealed, self.run.manifest.run_id), self._limits)
        except Refusal as refusal:
            self.shelf.note(record_id(record))
            self._put_refused(record, refusal, payer)
        else:
            self.shelf.add(group.record, listed=False, owner=payer)
            self._put(group, payer)

    def trust(self, peer_ids: Collection[str]) -> None:
        """Take in these authors' records at a member's rate, and all others' at a newcomer's."""
        self.admission.proven = frozenset(peer_ids)
