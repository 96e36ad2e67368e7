"""Peers of one process: a transport with no network, delivering at once and in order."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from swarm.errors import PeerUnreachable, RejectedGroup, TransportError
from swarm.net.mailbox import Mailbox
from swarm.net.wire import open_manifest
from swarm.protocols import RequestHandler
from swarm.types import NetworkStatus, RunManifest


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
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A peer of `hub`; with `manifest` (sealed) it brings the run, without it takes that of the others."""
        self.peer_id = peer_id
        self._hub = hub
        self._clock = clock
        self._inbox = Mailbox(inbox_records, inbox_bytes)
        self._handlers: dict[str, RequestHandler] = {}
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
        except RejectedGroup as refusal:
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
        for member in self._hub.others(self.peer_id):
            peer_run = member.manifest()
            if peer_run is not None and peer_run.run_id == run.run_id:
                member._deliver(record)

    def _deliver(self, record: bytes) -> None:
        self._counts["delivered"] += 1
        self._inbox.put(record)

    def drain(self) -> list[bytes]:
        """Records that arrived since the last call, oldest first."""
        self._require_open()
        return self._inbox.drain()

    def status(self) -> NetworkStatus:
        """The other peers in the run, or all others while there is none."""
        run = self.manifest()
        others = self._hub.others(self.peer_id) if self._open else []
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
        self._handlers[protocol] = handler

    def request(self, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
        """Call another peer's handler. Raises `PeerUnreachable` when the peer or handler is missing or fails."""
        self._require_open()
        for member in self._hub.others(self.peer_id):
            if member.peer_id == peer_id and protocol in member._handlers:
                try:
                    return member._handlers[protocol](self.peer_id, payload)
                except Exception as error:
                    member._counts["handler_errors"] += 1
                    raise PeerUnreachable(f"{peer_id} failed to answer {protocol}: {error}") from error
        raise PeerUnreachable(f"no peer {peer_id} answers {protocol} on this hub")

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
