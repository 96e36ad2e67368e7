"""What a node's network side knows, whichever daemon is running: written on the network thread, read on any."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from swarm.errors import ConfigError, PeerUnreachable, Refusal
from swarm.net.addresses.bootstrap import Bootstraps, read_addresses, write_addresses
from swarm.net.addresses.dial import by_peer
from swarm.net.addresses.nat import candidates, reachability, to_tell
from swarm.net.bandwidth import TokenBucket
from swarm.net.config import NetworkSettings
from swarm.net.counters import Counters
from swarm.net.membership.versions import Versions
from swarm.net.records.envelope import SealedRecord, read_record
from swarm.net.records.identity import Identity
from swarm.net.records.large import INLINE_BYTES, LARGE_PROTOCOL, Download, Waiting, announce, answer_large
from swarm.net.records.mailbox import Mailbox
from swarm.net.records.repair import GIVE_PROTOCOL, HAVE_PROTOCOL, answer_give, answer_have
from swarm.net.records.shelf import Shelf, record_id
from swarm.net.records.wire import (
    MAX_MULTIADDRS,
    MAX_PEER_RECORD_BYTES,
    MAX_PEER_RECORD_LIFE_S,
    Announcement,
    Limits,
    check_seal,
    is_outdated,
    open_announcement,
    open_group,
    open_manifest,
    refused,
    seal_peer_record,
)
from swarm.net.services.manifest import MANIFEST_PROTOCOL
from swarm.net.services.peer_exchange import PEERS_PROTOCOL, answer_peers
from swarm.net.trust.admission import Admission
from swarm.net.trust.guard import Guard
from swarm.protocols import StreamHandler
from swarm.reasons import Reason
from swarm.types import Arrival, NetworkStatus, PeerRecord, RunManifest, VerifiedGroup

logger = logging.getLogger(__name__)

LOOPBACK = ("/ip4/127.", "/ip6/::1/")
OUTBOX_RECORDS = 64
OUTBOX_BYTES = 16 * 2**20
"""A large record waits as its announcement."""
MAX_KNOWN_PEERS = 1_024
MAX_REMEMBERED_PEERS = 64
BY_OTHER_RULES = frozenset(
    {Reason.LIMITS, Reason.OVERSIZED, Reason.SCHEMA_VERSION, Reason.UNKNOWN_KIND, Reason.UNKNOWN_QUESTION}
)
"""What an honest helper may hold whose settings or version are not those of this node."""
MAX_COMPLAINTS = 256
"""Kept until they are asked for."""


class Profile(Struct, frozen=True):
    """What a node tells others about itself."""

    model: str = ""
    tasks: tuple[str, ...] = ()
    role: str = "peer"
    version: str = ""
    listed: bool = True
    """False for a visitor that only looks: it enters itself in no directory, and hears no gossip."""


class NodeState:
    """Everything that outlives a daemon: run, mailboxes, handlers, known peers, counts."""

    def __init__(
        self,
        settings: NetworkSettings,
        identity: Identity,
        profile: Profile,
        manifest: bytes | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """State of a node that has not started. Raises `ConfigError` for an address that names no peer."""
        self.settings = settings
        self.identity = identity
        self.profile = profile
        self.clock = clock
        self.counters = Counters()
        self.inbox = Mailbox[Arrival](settings.inbox_records, settings.inbox_bytes)
        self.outbox = Mailbox[bytes](OUTBOX_RECORDS, OUTBOX_BYTES)
        self.shelf = Shelf(settings.shelf_records, settings.shelf_bytes, settings.backfill_s)
        self.large = Waiting()
        self.versions = Versions()
        self.admission = Admission(settings)
        self._limits = Limits(settings.max_record_bytes, settings.max_completion_chars)
        self.uploads = TokenBucket(settings.upload_bytes_per_s)
        """What goes out in answers to others."""
        self._complaints: deque[tuple[str, Reason]] = deque(maxlen=MAX_COMPLAINTS)
        self.guard = Guard(self.counters, self.complain)
        self.on_announcement: Callable[[], None] = lambda: None
        """Called when a download is queued."""
        self.on_banned: Callable[[], None] = lambda: None
        """Called when a peer that is banned turns out to be connected."""
        self.handlers: dict[str, StreamHandler] = {
            MANIFEST_PROTOCOL: lambda remote, request: iter([self.sealed or b""]),
            HAVE_PROTOCOL: lambda remote, request: iter([answer_have(self.shelf, request)]),
            GIVE_PROTOCOL: lambda remote, request: answer_give(self.shelf, request),
            LARGE_PROTOCOL: lambda remote, request: answer_large(self.shelf, request),
            PEERS_PROTOCOL: lambda remote, request: iter([answer_peers(self.fresh_peers())]),
        }
        """What is answered for each protocol, ours and those added by `serve`."""
        self.bootstraps = Bootstraps(settings.bootstrap)
        self.bootstraps.look_up()
        self.remembered = _remembered(settings.remember)
        """Addresses of peers met earlier, also by an earlier process; the latest met come last."""
        self.known: dict[str, tuple[PeerRecord, bytes]] = {}
        """What peers said about themselves, opened and as they signed it; may have expired."""
        self.told_by: dict[str, str] = {}
        """By peer of those: who handed its record on first; nobody stands for the directory."""
        self.banned: frozenset[str] = frozenset()
        self.relays = candidates(settings, self.bootstrap)
        """Relays to hold places at."""
        self.connected: frozenset[str] = frozenset()
        """Peers with an open connection, in the run or not."""
        self.in_run: frozenset[str] = frozenset()
        """Those of them that take part in the run."""
        self.observed: dict[str, tuple[str, ...]] = {}
        """By peer: the other ends of its connections, as this machine sees them."""
        self.addresses: tuple[str, ...] = ()
        self.alone_since: float | None = clock()
        self.detail = "not started"
        self.sealed: bytes | None = None
        self.manifest: RunManifest | None = None
        self._in_run_since = time.monotonic()
        self._adopting = threading.Lock()
        if manifest is not None:
            self.adopt(manifest, now=math.inf)  # it was checked when it came

    @property
    def topic(self) -> str | None:
        """The gossip topic of the run's groups; None until there is a run."""
        return f"swarm/{self.manifest.run_id}/groups" if self.manifest else None

    def adopt(self, sealed: bytes, *, now: float | None = None) -> None:
        """Take a manifest as the run's. Raises `Refusal` when it is invalid, outdated or of another run."""
        with self._adopting:
            expected = self.manifest.run_id if self.manifest else self.settings.run_id
            manifest = open_manifest(sealed, expected, now=now)
            if self.manifest is not None and is_outdated(manifest, self.manifest, now=now):
                raise Refusal(Reason.STALE, f"a manifest of {self.manifest.created_at}, got {manifest.created_at}")
            if self.manifest is None:
                self._in_run_since = time.monotonic()
            self.sealed, self.manifest = sealed, manifest

    @property
    def bootstrap(self) -> dict[str, tuple[str, ...]]:
        """Addresses of the bootstraps, as they stand now."""
        found = self.bootstraps.by_peer()
        found.pop(self.identity.peer_id, None)
        return found

    def offer(self, record: bytes) -> None:
        """Publish a record in the run, which must be known: by gossip, and on the shelf for those whom that misses."""
        assert self.manifest is not None
        own = self.identity.peer_id
        if len(record) > INLINE_BYTES:
            self.shelf.add(record, listed=False, owner=own)
            record = announce(self.identity, self.manifest.run_id, record)
        self.shelf.add(record, owner=own)
        self.outbox.put(record, len(record))

    def receive(self, sender: str, record: bytes) -> bool:
        """Take a gossip message in; whether others may have it from here.

        What cannot be read or used here may be of use to them: to those who speak another version.
        """
        if sender == self.identity.peer_id:
            return True
        if sender in self.banned:
            self.counters.add("banned_gossip")
            return False
        if self._is_too_long(record):
            return False
        if self._is_known(record):
            return True
        payer = self.admission.payer(sender, self.connected)
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
        if self.admission.hears(author, self.connected, num_bytes):
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
        if author in self.banned:
            self.counters.add("banned_gossip")
            return
        self._check_gift(helper, author, len(record), self._cost(sealed))
        try:
            self._take_in(helper, sealed, age_s)
        except Refusal as refusal:
            self._decline(helper, record, refusal)
            return
        before = age_s > time.monotonic() - self._in_run_since
        self.counters.add("backfilled" if before else "repaired")

    def _check_gift(self, helper: str, author: str, sent_bytes: int, num_bytes: int) -> None:
        """Raises `PeerUnreachable` for a gift beyond what is taken from its helper."""
        if not self.admission.is_given(helper, author, self.connected, sent_bytes, num_bytes):
            self.counters.add("drop_over_budget")
            raise PeerUnreachable("it gave more of strangers' than is taken from one peer at a time")

    def _decline(self, helper: str, record: bytes, refusal: Refusal) -> None:
        """Not ask for a record again. Raises `PeerUnreachable` for one that no honest helper holds."""
        self.versions.refused(helper, refusal)
        self.shelf.note(record_id(record))
        self.counters.add("refused_repairs")
        if refusal.reason not in BY_OTHER_RULES:
            self.complain(helper, Reason.BAD_GIFT)
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
        assert self.manifest is not None
        run_id = self.manifest.run_id
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
        assert self.manifest is not None
        record, payer = download.record(), download.payer
        if self.shelf.knows(download.announcement.record_id):
            return
        self.counters.add("fetched")
        try:
            sealed = read_record(record, self.settings.max_record_bytes)
            group = open_group(check_seal(sealed, self.manifest.run_id), self._limits)
        except Refusal as refusal:
            self.shelf.note(record_id(record))
            self._put_refused(record, refusal, payer)
        else:
            self.shelf.add(group.record, listed=False, owner=payer)
            self._put(group, payer)

    def complain(self, peer_id: str, reason: Reason) -> None:
        """Note what speaks against a peer: for the counters, and for whoever keeps its account."""
        self.counters.add(reason)
        self._complaints.append((peer_id, reason))

    def complaints(self) -> list[tuple[str, Reason]]:
        """(peer id, reason) of what was noted since the last call."""
        return [self._complaints.popleft() for _ in range(len(self._complaints))]

    def handle(self, protocol: str, remote: str, request: bytes) -> Iterator[bytes | None]:
        """Answer a peer's request; a failing handler is counted, and the peer told."""
        try:
            yield from self.handlers[protocol](remote, request)
        except Exception as error:
            self.guard.request_failed(remote, error)
            raise

    def admits(self, peer_id: str) -> bool:
        """Whether a peer's streams are to be answered."""
        if peer_id in self.banned:
            self.counters.add("banned_streams")
            self.on_banned()
            return False
        return True

    def ban(self, peer_ids: Collection[str]) -> None:
        """Have nothing to do with these peers from now on, and with no others."""
        self.banned = frozenset(peer_ids) - {self.identity.peer_id}

    def trust(self, peer_ids: Collection[str]) -> None:
        """Take in these authors' records at a member's rate, and all others' at a newcomer's."""
        self.admission.proven = frozenset(peer_ids)

    def see(self, connected: frozenset[str], subscribers: frozenset[str]) -> None:
        """Note who is connected now, and who of them subscribes to the run's groups."""
        self.connected = connected = connected - self.banned
        self.in_run = connected & subscribers if self.manifest else connected
        if self.in_run:
            self.alone_since = None
        elif self.alone_since is None:
            self.alone_since = self.clock()

    def locate(self, addresses: tuple[str, ...]) -> bool:
        """Note the node's own addresses; whether they changed."""
        changed = set(addresses) != set(self.addresses)
        self.addresses = addresses
        return changed

    def reachability(self) -> str | None:
        """In words, whether strangers can reach this node; None when nothing tells."""
        return reachability(self.settings, self.bootstrap, self.addresses, self.connected)

    def learn(self, records: list[tuple[PeerRecord, bytes]], teller: str = "") -> None:
        """Remember where peers are; of those not connected, the longest expired make room."""
        known = dict(self.known)
        for record, sealed in records:
            if record.peer_id not in known or known[record.peer_id][0].expires_at <= record.expires_at:
                known[record.peer_id] = (record, sealed)
        known.pop(self.identity.peer_id, None)
        # Strangers can sign any number of records that live longer than honest ones.
        worth = {peer_id: (peer_id in self.connected, record.expires_at) for peer_id, (record, _) in known.items()}
        self.known = {peer_id: known[peer_id] for peer_id in sorted(known, key=worth.__getitem__)[-MAX_KNOWN_PEERS:]}
        self.told_by = {peer_id: self.told_by.get(peer_id, teller) for peer_id in self.known}

    def fresh_peers(self) -> list[bytes]:
        """Signed records to hand on: this node's own, those of connected peers, then others, the freshest first."""
        now = self.clock()
        fresh = [entry for entry in self.known.values() if entry[0].expires_at > now]
        fresh.sort(key=lambda entry: (entry[0].peer_id in self.connected, entry[0].expires_at), reverse=True)
        own = [self.sealed_own_record()[0]] if self.manifest else []
        return own + [sealed for record, sealed in fresh if record.peer_id not in self.banned]

    def remember(self) -> None:
        """Write down where the peers of the run are, if a path for that is set."""
        for peer_id in self.in_run:
            entry = self.known.get(peer_id)
            if entry is not None and entry[0].multiaddrs:
                self.remembered.pop(peer_id, None)
                # A record may name other peers too: those are not its to place.
                suffix = f"/p2p/{peer_id}"
                own = tuple(address.removesuffix(suffix) for address in entry[0].multiaddrs if address.endswith(suffix))
                if own and all(address.isprintable() for address in own):
                    self.remembered[peer_id] = own
        self.remembered = dict(list(self.remembered.items())[-MAX_REMEMBERED_PEERS:])
        if self.settings.remember is None or not self.remembered:
            return
        addresses = [f"{address}/p2p/{peer_id}" for peer_id, group in self.remembered.items() for address in group]
        try:
            write_addresses(self.settings.remember, addresses, "peers met; the latest last")
        except OSError as error:
            self.counters.add("remember_failures")
            logger.warning("the peers met cannot be written to %s: %s", self.settings.remember, error)

    def sealed_own_record(self) -> tuple[bytes, float]:
        """This node's entry in the directory, signed, and when it expires; too many tasks are left out."""
        record = self._own_record()
        sealed = seal_peer_record(self.identity, record)
        if len(sealed) > MAX_PEER_RECORD_BYTES:
            # Where a peer is matters more than what it does.
            sealed = seal_peer_record(self.identity, replace(record, tasks=()))
        return sealed, record.expires_at

    def _own_record(self) -> PeerRecord:
        """Good for three renewals."""
        assert self.manifest is not None
        # An address of this machine only means nothing to others, unless they are on it too: then any will do.
        outward = tuple(address for address in to_tell(self.multiaddrs()) if not address.startswith(LOOPBACK))
        life_s = min(3 * self.settings.announce_every_s, MAX_PEER_RECORD_LIFE_S / 2)
        return PeerRecord(
            self.manifest.run_id,
            self.identity.peer_id,
            (outward or self.multiaddrs())[: MAX_MULTIADDRS // 2],
            self.profile.model,
            self.profile.tasks,
            self.profile.role,
            self.profile.version,
            self.clock() + life_s,
        )

    def multiaddrs(self) -> tuple[str, ...]:
        """Addresses under which others reach this node."""
        return tuple(f"{address}/p2p/{self.identity.peer_id}" for address in self.addresses)

    def status(self) -> NetworkStatus:
        """The network as it is now."""
        run_id = self.manifest.run_id if self.manifest else None
        return NetworkStatus(
            run_id, tuple(sorted(self.in_run)), self.alone_since, self.detail, self.versions.describe()
        )


def _remembered(path: Path | None) -> dict[str, tuple[str, ...]]:
    if path is None:
        return {}
    try:
        return by_peer(read_addresses(path))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"the file of peers met, {path}, cannot be read: {error.strerror or error}") from error
