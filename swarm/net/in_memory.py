"""Peers of one process: a transport with no network, delivering at once and in order."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator
from contextlib import suppress

from swarm.errors import PeerUnreachable, Refusal, TransportError
from swarm.net.records.framing import MAX_CHUNK_BYTES, MAX_REQUEST_BYTES, NOT_YET_S
from swarm.net.records.mailbox import Mailbox
from swarm.net.records.repair import MAX_LISTED
from swarm.net.records.shelf import Shelf, record_id
from swarm.net.records.wire import SignedRecord, check_seal, open_manifest, outside
from swarm.protocols import RequestHandler, StreamHandler
from swarm.reasons import Reason
from swarm.types import NetworkStatus, PeerRecord, RunManifest

MAX_ANSWER_BYTES = 2 * 2**20


class MemoryHub:
    """What the peers of one process have instead of a network: a room where each sees the others."""

    def __init__(self) -> None:
        """An empty room."""
        self._lock = threading.RLock()
        self._members: dict[str, MemoryTransport] = {}

    def enter(self, member: MemoryTransport) -> None:
        """Add a peer. Raises `TransportError` when its peer id is taken."""
        with self._lock:
            if member.peer_id in self._members:
                raise TransportError(f"the peer id {member.peer_id} is already in use on this hub")
            self._members[member.peer_id] = member

    def leave(self, peer_id: str) -> None:
        """Remove a peer; unknown ones are ignored."""
        with self._lock:
            self._members.pop(peer_id, None)

    def others(self, peer_id: str) -> list[MemoryTransport]:
        """Everyone but `peer_id`, in the order they entered."""
        with self._lock:
            return [member for member in self._members.values() if member.peer_id != peer_id]


class MemoryTransport:
    """`Transport` over a `MemoryHub`."""

    def __init__(
        self,
        hub: MemoryHub,
        peer_id: str,
        manifest: bytes | None = None,
        *,
        inbox_records: int = 1_024,
        inbox_bytes: int = 64 * 2**20,
        shelf_records: int = 8_192,
        backfill_s: float = 120.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A peer of `hub`; with `manifest` (sealed) it brings the run, without it takes that of the others."""
        self.peer_id = peer_id
        self._hub = hub
        self._clock = clock
        self._inbox = Mailbox(inbox_records, inbox_bytes)
        self._shelf = Shelf(shelf_records, inbox_bytes, backfill_s)
        self._backfill_s = backfill_s
        self._backfilled = False
        self._banned: frozenset[str] = frozenset()
        self._handlers: dict[str, StreamHandler] = {}
        self._counts: Counter[str] = Counter()
        self._sealed: bytes | None = None
        self._manifest: RunManifest | None = None
        self._open = False
        self._alone_since: float | None = None
        if manifest is not None:
            self.set_manifest(manifest)

    def start(self) -> None:
        """Enter the hub."""
        self._hub.enter(self)
        self._open = True
        self._alone_since = self._clock()

    def manifest(self) -> RunManifest | None:
        """The run this node is in; None until known."""
        if self._manifest is None and self._open:
            for member in self._hub.others(self.peer_id):
                if member._sealed is not None:
                    self.set_manifest(member._sealed)
                    break
        return self._manifest

    def sealed_manifest(self) -> bytes | None:
        """The manifest as its founder signed it."""
        return self._sealed

    def set_manifest(self, sealed: bytes) -> None:
        """Join the run of a sealed manifest. Raises `TransportError` when it is invalid or of another run."""
        try:
            manifest = open_manifest(sealed, self._manifest.run_id if self._manifest else None)
        except Refusal as refusal:
            raise TransportError(f"the run's manifest was refused: {refusal}") from refusal
        self._sealed, self._manifest = sealed, manifest

    def publish(self, record: bytes) -> None:
        """Put a record into the inbox of every peer in the run."""
        self._require_open()
        run = self.manifest()
        if run is None:
            self._counts["no_run"] += 1
            return
        self._counts["published"] += 1
        # In one process one look is enough: those who receive it see that it was checked.
        with suppress(Refusal):
            record = check_seal(record, run.run_id, len(record))
        self._keep(record)
        for member in self._in_run(run):
            member._deliver(self.peer_id, record, "delivered")

    def _in_run(self, run: RunManifest) -> list[MemoryTransport]:
        others = [member for member in self._hub.others(self.peer_id) if self._meets(member)]
        return [member for member in others if (theirs := member.manifest()) and theirs.run_id == run.run_id]

    def _meets(self, other: MemoryTransport) -> bool:
        return other.peer_id not in self._banned and self.peer_id not in other._banned

    def _deliver(self, sender: str, record: bytes, how: str) -> None:
        label = outside(record)
        if sender in self._banned or (label is not None and label[1] in self._banned):
            self._counts["banned_gossip"] += 1
        elif not self._keep(record):
            self._counts["duplicates"] += 1
        else:
            self._counts[how] += 1
            self._inbox.put(record)

    def _keep(self, record: bytes) -> bool:
        """Whether a record is news; only one that is signed is held for others."""
        return self._shelf.add(record) if isinstance(record, SignedRecord) else self._shelf.note(record_id(record))

    def _backfill(self, run: RunManifest) -> None:
        """What was published before this peer came."""
        for member in self._in_run(run):
            for held in reversed(member._shelf.listing(self._backfill_s, 0.0, MAX_LISTED)):
                record = member._shelf.get(held.record_id)
                if record is not None and not self._shelf.knows(held.record_id):
                    self._deliver(member.peer_id, record, "backfilled")

    def has_room(self) -> bool:
        """Always: what is published is there at once."""
        return True

    def drain(self) -> list[bytes]:
        """Records that arrived since the last call, oldest first."""
        self._require_open()
        self._backfill_once()
        return self._inbox.drain()

    def wait(self, timeout_s: float) -> bool:
        """Block until there is something to drain; whether there is."""
        self._require_open()
        self._backfill_once()
        return self._inbox.wait(timeout_s)

    def _backfill_once(self) -> None:
        run = self.manifest()
        if run is not None and not self._backfilled:
            self._backfilled = True
            self._backfill(run)

    def status(self) -> NetworkStatus:
        """The other peers in the run, or all others while there is none."""
        run = self.manifest()
        others = [member for member in self._hub.others(self.peer_id) if self._meets(member)] if self._open else []
        connected = tuple(
            member.peer_id for member in others if run is None or (member.manifest() or run).run_id == run.run_id
        )
        if connected:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = self._clock()
        return NetworkStatus(run.run_id if run else None, connected, self._alone_since, "in one process")

    def multiaddrs(self) -> tuple[str, ...]:
        """A name for this peer; nothing outside the process can dial it."""
        return (f"/memory/{self.peer_id}/p2p/{self.peer_id}",)

    def serve(self, protocol: str, handler: RequestHandler) -> None:
        """Answer requests for `protocol`, on the thread of whoever asks."""
        self.serve_stream(protocol, lambda remote, request: iter([handler(remote, request)]))

    def serve_stream(self, protocol: str, handler: StreamHandler) -> None:
        """Answer requests for `protocol`, on the thread of whoever asks."""
        self._handlers[protocol] = handler

    def request(self, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
        """Call another peer's handler. Raises `PeerUnreachable` when the peer or handler is missing or fails."""
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
            raise PeerUnreachable(f"{member.peer_id} does not serve this peer")
        room = max_bytes
        silent_s = 0.0
        try:
            for chunk in member._handlers[protocol](self.peer_id, payload):
                if chunk is None:
                    if silent_s >= timeout_s or not member._open:
                        raise PeerUnreachable(f"nothing for {timeout_s:g} s")
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
        """Nobody: peers of one process need not be found."""
        return ()

    def complaints(self) -> list[tuple[str, Reason]]:
        """None: within one process nothing is slow."""
        return []

    def trust(self, peer_ids: Collection[str]) -> None:
        """Nothing to do: within one process nobody has to be kept out."""

    def ban(self, peer_ids: Collection[str]) -> None:
        """Have nothing to do with these peers, and with no others."""
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
