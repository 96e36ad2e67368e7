"""Traffic of the run's records, in and out.

publish            own records         -> store, outbox   (a large record: its announcement)
hand_out           outbox              -> feed            (in the session's time)
hold               own records         -> store           (on offer: others ask for them)
receive_gossip     others' feeds       -> store, inbox, feed
receive_repaired   others' stores      -> store, inbox    (records that gossip missed)
receive_fetched    finished downloads  -> store, inbox    (announced large records, records on offer)

Before a record is decoded, this module checks whether its sender may publish it, whether it is new, and which account
is charged. A refused record is not forwarded, unless a node of a later version may understand it. `Versions` reports a
swarm that is split into incompatible protocol versions.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection

from msgspec.structs import replace

from swarm.errors import PeerUnreachable, Refusal
from swarm.lru import LruDict
from swarm.net.config import NetworkSettings
from swarm.net.guard import Complaints, Counters
from swarm.net.membership.known_peers import CurrentRun, KnownPeers
from swarm.net.records.envelope import SealedRecord, SignedRecord, check_signature, read_record
from swarm.net.records.feed import Feed
from swarm.net.records.identity import Identity
from swarm.net.records.large import INLINE_BYTES, Download, DownloadQueue, announce, pull
from swarm.net.records.offers import OFFERS, check_pulled, open_offers
from swarm.net.records.stores import Mailbox, RecordStore, record_id
from swarm.net.records.wire import (
    Announcement,
    Limits,
    check_place,
    check_seal,
    open_announcement,
    open_group,
    refused,
)
from swarm.net.trust.record_admission import RecordAdmission
from swarm.net.trust.sharing import OfferRate
from swarm.reasons import Reason
from swarm.types import Arrival, OfferedGroup, VerifiedGroup

OUTBOX_RECORDS = 64
OUTBOX_BYTES = 16 * 2**20
"""A large record is queued as its announcement."""
QUEUED_S = 15.0
"""A chosen record for which no request could be sent within this time is not fetched."""
BY_OTHER_RULES = frozenset(
    {Reason.LIMITS, Reason.OVERSIZED, Reason.SCHEMA_VERSION, Reason.UNKNOWN_KIND, Reason.UNKNOWN_QUESTION}
)
"""Refusals of records that an honest helper with other settings or another version may hold."""
FORWARDED = frozenset({Reason.UNKNOWN_KIND, Reason.UNKNOWN_QUESTION})
"""Refusals of signed records that are forwarded all the same: a node of a later version understands them."""
HEARD_FOR_S = 600.0
MAX_PEERS = 1_024


class RecordTraffic:
    """Mailboxes, record store, announced downloads and admission. For the network thread, except `publish`, `trust`
    and the mailboxes.
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
        clock: Callable[[], float] = time.time,
    ) -> None:
        """No records yet. `clock` gives Unix seconds: arrivals are stamped with it."""
        self.settings = settings
        self.identity = identity
        self.run = run
        self.peers = peers
        self.complaints = complaints
        self.counters = counters
        self.versions = versions
        self._clock = clock
        self.inbox = Mailbox[Arrival](settings.inbox_records, settings.inbox_bytes)
        self.outbox = Mailbox[bytes](OUTBOX_RECORDS, OUTBOX_BYTES)
        self.store = RecordStore(settings.shelf_records, settings.shelf_bytes, settings.backfill_s)
        self.feed = Feed()
        """Read by the followers of this node."""
        self.large = DownloadQueue()
        self.pulls = DownloadQueue()
        """Records on offer that this node chose."""
        self._chosen: deque[tuple[float, OfferedGroup]] = deque()
        """Chosen offers on their way from the node's thread to `pulls`, with the patience for each."""
        self.admission = RecordAdmission(settings)
        self.offer_rate = OfferRate(settings.offers_per_s)
        self._limits = Limits(settings.max_record_bytes, settings.max_completion_chars)
        self.heard_at = -math.inf
        """When another node was last heard."""
        self.on_announcement: Callable[[], None] = lambda: None
        """Called when a download is queued."""
        self.on_pull: Callable[[], None] = lambda: None
        """Called when a chosen download is queued."""

    def publish(self, record: bytes) -> None:
        """Queue a record for the feed and store it for peers that miss it. The run must be known."""
        assert self.run.manifest is not None
        own = self.identity.peer_id
        if len(record) > INLINE_BYTES:
            self.store.add(record, listed=False, owner=own)
            record = announce(self.identity, self.run.manifest.run_id, record)
        self.store.add(record, owner=own)
        self.outbox.put(record, len(record))

    def hand_out(self) -> int:
        """Move the oldest record of the outbox into the feed; its bytes, 0 if there is none."""
        record = self.outbox.take()
        if record is None:
            return 0
        self.feed.add(record, is_own=True)
        self.counters.add("published")
        self.counters.add("published_bytes", len(record))
        return len(record)

    def hold(self, record: bytes) -> None:
        """Store a record for peers that ask for it, without sending it."""
        self.store.add(record, owner=self.identity.peer_id, offered=True)

    def pull(self, offered: OfferedGroup, patience_s: float) -> None:
        """Fetch a record on offer; may be called on any thread, `queue_pulls` then takes it over."""
        self._chosen.append((patience_s, offered))

    def queue_pulls(self) -> None:
        """Queue the downloads asked for since the last call."""
        assert self.run.manifest is not None
        while self._chosen:
            patience_s, offered = self._chosen.popleft()
            if not self.store.has_seen(offered.offer.record_id):
                account = self.admission.account(offered.peer_id, self.peers.connected)
                chosen = pull(self.run.manifest.run_id, offered, account, patience_s)
                self.pulls.put_back(time.monotonic() + QUEUED_S, chosen)
        self.on_pull()

    def heard(self) -> None:
        """Bytes of another node have arrived."""
        self.heard_at = time.monotonic()

    def receive_gossip(self, helper: str, record: bytes) -> None:
        """Accept a record from the feed of a helper, and forward it.

        Raises `PeerUnreachable` if no honest peer forwards it.
        """
        self.feed.known_to(helper, record_id(record))
        if self._is_too_long(record) or self._is_known(record):
            return
        try:
            sealed = read_record(record, INLINE_BYTES)
        except Refusal as refusal:
            if self.admission.admits_gossip(helper, helper, self.peers.connected, len(record)):
                self._refuse_gossip(helper, helper, record, refusal)
            else:
                self.counters.add("drop_over_budget")
            return
        author, are_offers = sealed.body.peer_id, sealed.body.kind == OFFERS
        if author in self.peers.banned:
            self.counters.add("banned_gossip")
            return
        connected, cost = self.peers.connected, self._cost(sealed)
        fits = self.admission.has_room_for_gossip(helper, author, connected, cost, are_offers=are_offers)
        if not fits:
            self.counters.add("drop_over_budget")
            if not are_offers:
                return
        try:
            # Before anything is charged to the author: any peer may name it.
            signed = check_signature(sealed)
        except Refusal as refusal:
            self._refuse_gossip(helper, helper, record, refusal)
            return
        account = self.admission.account(author, connected, helper)
        try:
            if fits and self.admission.admits_gossip(helper, author, connected, cost, are_offers=are_offers):
                self._open_and_store(account, signed, 0.0)
                self.feed.add(record, helper, author)
                self.counters.add("delivered")
            else:
                # They have cost bandwidth: too many offers are counted even if none is opened.
                self._check_place(signed)
                self.offer_rate.heard(author, 1, 0.0)
        except Refusal as refusal:
            if refusal.reason in FORWARDED:
                self.feed.add(record, helper, author)
            self._refuse_gossip(helper, account, record, refusal, author)

    def _check_place(self, signed: SignedRecord) -> SignedRecord:
        """A record that members of this run exchange. Raises `Refusal`."""
        assert self.run.manifest is not None
        return check_place(signed, self.run.manifest.run_id)

    def _refuse_gossip(self, helper: str, account: str, record: bytes, refusal: Refusal, author: str = "") -> None:
        """Mark a record as seen, and put its refusal into the inbox for the exchange to count.

        Raises `PeerUnreachable` if the helper is to blame, and not the author.
        """
        self.versions.refused(author or helper, refusal)
        self.store.mark_seen(record_id(record))
        self._put_refused(record, refusal, account)
        self.counters.add("delivered")
        if refusal.peer_id != helper:
            self._blame_helper(helper, refusal)

    def receive_repaired(self, helper: str, record: bytes, age_s: float) -> None:
        """Accept a record from repair. One that is older than this node's membership counts as a backfill.

        Raises `PeerUnreachable` if the helper's budget is used up, or if it sent a record that no honest peer holds.
        """
        if self._is_too_long(record) or self._is_known(record):
            return
        try:
            sealed = read_record(record, INLINE_BYTES)
        except Refusal as refusal:
            self._check_repair_budget(helper, helper, len(record), len(record))
            self._refuse_repaired(helper, record, refusal)
            return
        author = sealed.body.peer_id
        if author in self.peers.banned:
            self.counters.add("banned_gossip")
            return
        self._check_repair_budget(helper, author, len(record), self._cost(sealed))
        try:
            self._open_and_store(helper, check_signature(sealed), age_s)
        except Refusal as refusal:
            self._refuse_repaired(helper, record, refusal)
            return
        before = age_s > time.monotonic() - self.run.since
        self.counters.add("backfilled" if before else "repaired")

    def _check_repair_budget(self, helper: str, author: str, sent_bytes: int, num_bytes: int) -> None:
        """Raises `PeerUnreachable` for a record beyond the helper's budget."""
        if not self.admission.admits_repair(helper, author, self.peers.connected, sent_bytes, num_bytes):
            self.counters.add("drop_over_budget")
            raise PeerUnreachable("it sent more records than the budget of one helper allows")

    def _refuse_repaired(self, helper: str, record: bytes, refusal: Refusal) -> None:
        """Mark a record as seen. Raises `PeerUnreachable` if no honest helper would hold it."""
        self.versions.refused(helper, refusal)
        self.store.mark_seen(record_id(record))
        self.counters.add("refused_repairs")
        self._blame_helper(helper, refusal)

    def _blame_helper(self, helper: str, refusal: Refusal) -> None:
        """Raises `PeerUnreachable` unless an honest helper with other rules may hold the record."""
        if refusal.reason not in BY_OTHER_RULES:
            self.complaints.add(helper, Reason.BAD_GIFT)
            raise PeerUnreachable(f"it sent a record that no honest peer holds: {refusal}") from refusal

    def _cost(self, sealed: SealedRecord) -> int:
        """Bytes to decode a record. One that exceeds the limit will not be decompressed, so it costs its length."""
        stated = sealed.stated_bytes
        return stated if stated <= self._limits.max_payload_bytes else len(sealed.record)

    def _is_too_long(self, record: bytes) -> bool:
        if len(record) > min(self.settings.max_record_bytes, INLINE_BYTES):
            self.counters.add("drop_oversized")
            return True
        return False

    def _is_known(self, record: bytes) -> bool:
        if self.store.has_seen(record_id(record)):
            self.counters.add("duplicates")
            return True
        return False

    def _open_and_store(self, account: str, signed: SignedRecord, age_s: float) -> None:
        """Open a record; store it for others and for this node, charged to `account`.

        Raises `Refusal` for a record of another run or an invalid one.
        """
        run_id = self._check_place(signed).body.run_id
        self.versions.understood(signed.body.peer_id)
        if signed.body.kind == "large":
            announcement = open_announcement(signed, run_id, self.settings.max_record_bytes)
            self.store.add(signed.record, age_s, owner=account)
            self._queue_download(announcement, account)
        elif signed.body.kind == OFFERS:
            offered = open_offers(signed, run_id)
            self.store.add(signed.record, age_s, owner=account)
            if offered.peer_id != self.identity.peer_id:
                if not age_s:  # repair delivers them in bursts
                    self.offer_rate.heard(offered.peer_id, len(offered.offers), offered.per_s)
                self.inbox.put(replace(offered, heard_at=self._clock()), len(signed.record), account)
        else:
            group = open_group(signed, self._limits)
            self.store.add(group.record, age_s, owner=account)
            self._put(group, account)

    def _put(self, group: VerifiedGroup, account: str) -> None:
        self.counters.add("received_bytes", len(group.record))
        self.inbox.put(replace(group, heard_at=self._clock()), len(group.record), account, group.memory_bytes)

    def _put_refused(self, record: bytes, refusal: Refusal, account: str) -> None:
        self.counters.add("received_bytes", len(record))
        self.inbox.put(refused(refusal), len(record), account)

    def _queue_download(self, announcement: Announcement, account: str) -> None:
        """Queue the download of an announced record."""
        if announcement.peer_id == self.identity.peer_id or self.store.has_seen(announcement.record_id):
            return
        if not self.large.add(announcement, time.monotonic() + self.settings.backfill_s, account):
            self.counters.add("drop_announced")
        self.on_announcement()

    def receive_fetched(self, download: Download) -> None:
        """Accept a fetched record. Raises `PeerUnreachable` if it is not the announced one."""
        try:
            record = download.record()
        except PeerUnreachable:
            self.complaints.add(download.announcement.peer_id, Reason.BAD_GIFT)
            raise
        account = download.account
        if self.store.has_seen(download.announcement.record_id):
            return
        self.counters.add("fetched" if download.offered is None else "pulled")
        try:
            group = self._open_fetched(record, download.offered)
        except Refusal as refusal:
            self.store.mark_seen(record_id(record))
            self._put_refused(record, refusal, account)
            self._blame_promise(download.announcement.peer_id, refusal)
        else:
            on_offer = download.offered is not None
            if group.group.peer_id != download.announcement.peer_id:
                # In the account of the peer that promised it, a flood could displace it.
                account = self.admission.account(group.group.peer_id, self.peers.connected)
            self.store.add(group.record, listed=on_offer, owner=account, offered=on_offer)
            self._put(group, account)

    def _open_fetched(self, record: bytes, offered: OfferedGroup | None) -> VerifiedGroup:
        """The group in a record. Raises `Refusal`."""
        assert self.run.manifest is not None
        sealed = read_record(record, self.settings.max_record_bytes)
        group = open_group(check_seal(sealed, self.run.manifest.run_id), self._limits)
        if offered is not None:
            check_pulled(offered, group, self.complaints.add)
        return group

    def _blame_promise(self, peer_id: str, refusal: Refusal) -> None:
        """Charge the signer of an announcement or offer if no author of the record can be charged.

        Its signed digests agree with every byte, whichever peer sent them, and honest nodes promise only own records.
        """
        if refusal.peer_id != peer_id and refusal.reason != Reason.UNKNOWN_KIND:
            self.complaints.add(peer_id, Reason.BAD_GIFT)

    def withheld(self, download: Download) -> None:
        """The author of a record on offer was asked for it, and no peer gave it in time."""
        self.complaints.add(download.announcement.peer_id, Reason.WITHHELD)

    def trust(self, peer_ids: Collection[str], known: Collection[str] = (), newcomers: float = 1.0) -> None:
        """Give these authors a member's budget, and all others a newcomer's; see `RecordTransport.trust`."""
        self.admission.proven = frozenset(peer_ids)
        self.offer_rate.trust({*peer_ids, *known}, newcomers)

    def is_proven(self, peer_id: str) -> bool:
        """Whether a peer's groups were useful here."""
        return self.admission.has_merit(peer_id)


class Versions:
    """Thread-safe record of peers heard recently, and of those with another major version."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._heard = LruDict[str, tuple[float, str]](MAX_PEERS)
        """When each peer was last heard, and its version problem; empty if its record could be read."""

    def understood(self, peer_id: str) -> None:
        """A record of this peer could be read."""
        self._note(peer_id, "")

    def refused(self, peer_id: str, refusal: Refusal) -> None:
        """A record of this peer was refused, for any reason."""
        if refusal.reason == Reason.SCHEMA_VERSION:
            self._note(peer_id, refusal.detail)

    def describe(self) -> str:
        """One line if most peers heard in the last ten minutes have another version; else empty."""
        with self._lock:
            since = self._clock() - HEARD_FOR_S
            heard = [problem for heard_at, problem in self._heard.values() if heard_at >= since]
        others = [problem for problem in heard if problem]
        if 2 * len(others) <= len(heard):
            return ""
        ((most, _),) = Counter(others).most_common(1)
        return f"{len(others)} of {len(heard)} peers heard lately cannot be understood: {most}"

    def _note(self, peer_id: str, problem: str) -> None:
        with self._lock:
            self._heard[peer_id] = (self._clock(), problem)
