"""A transport without a network, for peers in one process; delivers at once and in order."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator

from msgspec.structs import replace

from swarm.errors import PeerUnreachable, Refusal, TransportError
from swarm.net.records.envelope import MAX_CHUNK_BYTES, MAX_REQUEST_BYTES, NOT_YET_S, SignedRecord, read_record
from swarm.net.records.offers import OFFERS, check_pulled, open_offers
from swarm.net.records.repair import MAX_LISTED
from swarm.net.records.stores import Mailbox, RecordStore, record_id
from swarm.net.records.wire import Limits, SealedManifest, check_seal, open_group, open_manifest, refused
from swarm.net.trust.sharing import OFFERS_PER_S, OfferRate
from swarm.protocols import RequestHandler, StreamHandler
from swarm.reasons import Reason
from swarm.types import Arrival, MemberSummary, NetworkStatus, OfferedGroup, PeerRecord, RefusedRecord, RunManifest

MAX_ANSWER_BYTES = 2 * 2**20
Read = SignedRecord | RefusedRecord
"""A record after its envelope was checked."""
Heard = tuple[Read, float]
"""With the time of its arrival."""


class MemoryHub:
    """Connects the peers of one process in place of a network."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._members: dict[str, MemoryTransport] = {}

    def enter(self, member: MemoryTransport) -> None:
        """Add a peer. Raises `TransportError` if its peer id is taken."""
        with self._lock:
            if member.peer_id in self._members:
                raise TransportError(f"the peer id {member.peer_id} is already in use on this hub")
            self._members[member.peer_id] = member

    def leave(self, peer_id: str) -> None:
        """Remove a peer; an unknown one is ignored."""
        with self._lock:
            self._members.pop(peer_id, None)

    def others(self, peer_id: str) -> list[MemoryTransport]:
        """All peers but `peer_id`, in order of entry."""
        with self._lock:
            return [member for member in self._members.values() if member.peer_id != peer_id]


class MemoryTransport:
    """`Transport` over a `MemoryHub`."""

    def __init__(
        self,
        hub: MemoryHub,
        peer_id: str,
        manifest: SealedManifest | None = None,
        *,
        inbox_records: int = 1_024,
        inbox_bytes: int = 64 * 2**20,
        shelf_records: int = 8_192,
        limits: Limits | None = None,
        backfill_s: float = 120.0,
        offers_per_s: float = OFFERS_PER_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A peer of `hub`. With `manifest` it is in that run; otherwise it takes the run of the others.

        Records that exceed `limits` are refused.
        """
        self.peer_id = peer_id
        self._hub = hub
        self._clock = clock
        self._limits = limits or Limits()
        self._inbox = Mailbox[Heard](inbox_records, inbox_bytes)
        self._store = RecordStore(shelf_records, inbox_bytes, backfill_s, clock)
        self._backfill_s = backfill_s
        self._offer_rate = OfferRate(offers_per_s, clock)
        self._backfilled = False
        self._banned: frozenset[str] = frozenset()
        self._handlers: dict[str, StreamHandler] = {}
        self._counts: Counter[str] = Counter()
        self._complaints: list[tuple[str, Reason]] = []
        self._run = manifest
        self._open = False
        self._alone_since: float | None = None

    def start(self) -> None:
        """Enter the hub."""
        self._hub.enter(self)
        self._open = True
        self._alone_since = self._clock()

    def manifest(self) -> RunManifest | None:
        """The run that this node is in; None until known."""
        if self._run is None and self._open:
            self._run = next((each._run for each in self._hub.others(self.peer_id) if each._run is not None), None)
        return self._run.manifest if self._run is not None else None

    def sealed_manifest(self) -> bytes | None:
        """The manifest as its founder signed it."""
        return self._run.sealed if self._run is not None else None

    def set_manifest(self, sealed: bytes) -> None:
        """Join the run of a sealed manifest. Raises `TransportError` if it is invalid or of another run."""
        try:
            manifest = open_manifest(sealed, self._run.manifest.run_id if self._run is not None else None)
        except Refusal as refusal:
            raise TransportError(f"the run's manifest was refused: {refusal}") from refusal
        self._run = SealedManifest(sealed, manifest)

    def publish(self, record: bytes) -> None:
        """Put a record into the inbox of every peer in the run."""
        self._require_open()
        run = self.manifest()
        if run is None:
            self._counts["no_run"] += 1
            return
        self._counts["published"] += 1
        # The envelope is checked once, for all receivers.
        read = self._read(record, run.run_id)
        self._keep(record, read)
        for member in self._in_run(run):
            member._deliver(self.peer_id, record, read, "delivered")

    def hold(self, record: bytes) -> None:
        """Keep a record for peers that ask for it."""
        self._require_open()
        self._store.add(record, offered=True)

    def pull(self, offered: OfferedGroup, patience_s: float) -> None:
        """Take a record on offer from its author's store, or another's; the complaint is immediate if none has it."""
        self._require_open()
        if offered.peer_id in self._banned:
            return
        run = self.manifest()
        assert run is not None  # it came with an offer
        name = offered.offer.record_id
        members = sorted(self._in_run(run), key=lambda member: member.peer_id != offered.peer_id)
        record = next((held for member in members if (held := member._give(name)) is not None), None)
        if record is None:
            self._complain(offered.peer_id, Reason.WITHHELD)
        elif self._store.add(record, offered=True):
            self._counts["pulled"] += 1
            self._put(self._checked(record, run.run_id, offered), record)

    def _give(self, name: bytes) -> bytes | None:
        """A held record that another peer asks for."""
        return self._store.get(name)

    def _complain(self, peer_id: str, reason: Reason) -> None:
        self._counts[reason] += 1
        self._complaints.append((peer_id, reason))

    def _checked(self, record: bytes, run_id: str, offered: OfferedGroup) -> Read:
        """A pulled record, if it is what was offered, or another author's."""
        read = self._read(record, run_id)
        if isinstance(read, RefusedRecord):
            return read
        try:
            check_pulled(offered, open_group(read, self._limits), self._complain)
        except Refusal as refusal:
            return refused(refusal)
        return read

    def _read(self, record: bytes, run_id: str) -> Read:
        try:
            return check_seal(read_record(record, len(record)), run_id)
        except Refusal as refusal:
            return refused(refusal)

    def _in_run(self, run: RunManifest) -> list[MemoryTransport]:
        others = [member for member in self._hub.others(self.peer_id) if self._meets(member)]
        return [member for member in others if (theirs := member.manifest()) and theirs.run_id == run.run_id]

    def _meets(self, other: MemoryTransport) -> bool:
        return other.peer_id not in self._banned and self.peer_id not in other._banned

    def _deliver(self, sender: str, record: bytes, read: Read, how: str) -> None:
        if sender in self._banned or (isinstance(read, SignedRecord) and read.body.peer_id in self._banned):
            self._counts["banned_gossip"] += 1
        elif not self._keep(record, read):
            self._counts["duplicates"] += 1
        else:
            self._counts[how] += 1
            self._put(read, record)

    def _put(self, read: Read, record: bytes) -> None:
        self._inbox.put((read, self._clock()), len(record))

    def _keep(self, record: bytes, read: Read) -> bool:
        """Whether a record is new; only a signed one is held for others."""
        return self._store.add(record) if isinstance(read, SignedRecord) else self._store.mark_seen(record_id(record))

    def _backfill(self, run: RunManifest) -> None:
        """Deliver what was published before this peer entered."""
        for member in self._in_run(run):
            for held in reversed(member._store.listing(self._backfill_s, 0.0, MAX_LISTED)):
                record = None if held.offered else member._store.get(held.record_id)
                if record is not None and not self._store.has_seen(held.record_id):
                    self._deliver(member.peer_id, record, self._read(record, run.run_id), "backfilled")

    def has_room(self) -> bool:
        """Always true: records are delivered at once."""
        return True

    def drain(self) -> list[Arrival]:
        """Arrivals since the last call, oldest first; decoded on the caller's thread."""
        self._require_open()
        self._backfill_once()
        return [self._opened(read, heard_at) for read, heard_at in self._waiting()]

    def _waiting(self) -> list[Heard]:
        return self._inbox.drain()

    def _opened(self, read: Read, heard_at: float) -> Arrival:
        if isinstance(read, RefusedRecord):
            return read
        try:
            if read.body.kind == OFFERS:
                offered = open_offers(read, read.body.run_id)
                self._offer_rate.heard(offered.peer_id, len(offered.offers), offered.per_s)
                return replace(offered, heard_at=heard_at)
            return replace(open_group(read, self._limits), heard_at=heard_at)
        except Refusal as refusal:
            return refused(refusal)

    def wait(self, timeout_s: float) -> bool:
        """Block until there are arrivals or the timeout expires; whether there are any."""
        self._require_open()
        self._backfill_once()
        return self._inbox.wait(timeout_s)

    def _backfill_once(self) -> None:
        run = self.manifest()
        if run is not None and not self._backfilled:
            self._backfilled = True
            self._backfill(run)

    def status(self) -> NetworkStatus:
        """The other peers in the run; all others before the run is known."""
        run = self.manifest()
        others = [member for member in self._hub.others(self.peer_id) if self._meets(member)] if self._open else []
        connected = tuple(
            member.peer_id for member in others if run is None or (member.manifest() or run).run_id == run.run_id
        )
        if connected:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = self._clock()
        return NetworkStatus(
            run.run_id if run else None,
            connected,
            self._alone_since,
            "in one process",
            num_pulling=len(connected),
            num_described=len(connected),
            offers_per_s=self._offer_rate.per_s(),
        )

    def multiaddrs(self) -> tuple[str, ...]:
        """A pseudo-address for this peer; nothing outside the process can dial it."""
        return (f"/memory/{self.peer_id}/p2p/{self.peer_id}",)

    def serve(self, protocol: str, handler: RequestHandler) -> None:
        """Answer requests for `protocol`, on the asker's thread."""
        self.serve_stream(protocol, lambda remote, request: iter([handler(remote, request)]))

    def serve_stream(self, protocol: str, handler: StreamHandler) -> None:
        """Answer requests for `protocol`, on the asker's thread."""
        self._handlers[protocol] = handler

    def request(self, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
        """Call another peer's handler. Raises `PeerUnreachable` if the peer or handler is missing or fails."""
        return b"".join(self.stream(peer_id, protocol, payload, timeout_s, MAX_ANSWER_BYTES))

    def stream(
        self, peer_id: str, protocol: str, payload: bytes, timeout_s: float, max_bytes: int
    ) -> Generator[bytes, None, None]:
        """Chunks of another peer's answer. Raises `PeerUnreachable`."""
        self._require_open()
        return self._ask(peer_id, protocol, payload, timeout_s, max_bytes)

    def _ask(
        self, peer_id: str, protocol: str, payload: bytes, timeout_s: float, max_bytes: int
    ) -> Generator[bytes, None, None]:
        if len(payload) > MAX_REQUEST_BYTES:
            raise PeerUnreachable(f"a request must have at most {MAX_REQUEST_BYTES} bytes, got {len(payload)}")
        if peer_id in self._banned:
            raise PeerUnreachable(f"{peer_id} is banned by this node")
        serving = [other for other in self._hub.others(self.peer_id) if protocol in other._handlers]
        member = next((other for other in serving if other.peer_id == peer_id), None)
        if member is None:
            raise PeerUnreachable(f"no peer {peer_id} answers {protocol} on this hub")
        if self.peer_id in member._banned:
            member._counts["banned_streams"] += 1
            raise PeerUnreachable(f"{member.peer_id} has banned this node")
        room = max_bytes
        silent_s = 0.0
        try:
            for chunk in member._handlers[protocol](self.peer_id, payload):
                if not isinstance(chunk, bytes):
                    if silent_s >= timeout_s or not member._open:
                        raise PeerUnreachable(f"no data for {timeout_s:g} s")
                    time.sleep(NOT_YET_S)
                    silent_s += NOT_YET_S
                    continue
                silent_s = 0.0
                room -= len(chunk)
                if room < 0:
                    break
                for start in range(0, len(chunk), MAX_CHUNK_BYTES):
                    yield chunk[start : start + MAX_CHUNK_BYTES]
        except PeerUnreachable:
            raise
        except Exception as error:
            member._counts["handler_errors"] += 1
            raise PeerUnreachable(f"{member.peer_id} failed to answer {protocol}: {error}") from error
        if room < 0:
            raise PeerUnreachable(f"an answer must have at most {max_bytes} bytes, got more")

    def peers(self) -> tuple[PeerRecord, ...]:
        """Empty: peers of one process need no discovery."""
        return ()

    def observed(self, peer_id: str) -> tuple[str, ...]:
        """Empty: there are no addresses."""
        return ()

    def is_banned(self, peer_id: str) -> bool:
        """Whether this peer has banned another."""
        return peer_id in self._banned

    def summarize(self, summary: MemberSummary | None, measured: bytes = b"") -> None:
        """Does nothing: there is no directory."""

    def complaints(self) -> list[tuple[str, Reason]]:
        """(peer id, reason) of authors that withheld what they offered, since the last call."""
        complaints, self._complaints = self._complaints, []
        return complaints

    def trust(self, peer_ids: Collection[str], known: Collection[str] = (), newcomers: float = 1.0) -> None:
        """Only for the common rate: within one process there is no admission."""
        self._offer_rate.trust({*peer_ids, *known}, newcomers)

    def ban(self, peer_ids: Collection[str]) -> None:
        """Ban exactly these peers."""
        present = {member.peer_id for member in self._hub.others(self.peer_id)}
        self._counts["banned_connections"] += len(present & (frozenset(peer_ids) - self._banned))
        self._banned = frozenset(peer_ids) - {self.peer_id}

    def counters(self) -> dict[str, int]:
        """Cumulative counts."""
        return {**self._counts, "drop_inbox": self._inbox.num_dropped}

    def close(self) -> None:
        """Leave the hub."""
        self._hub.leave(self.peer_id)
        self._open = False

    def _require_open(self) -> None:
        if not self._open:
            raise TransportError("the transport must be started before use, and not used after close")
