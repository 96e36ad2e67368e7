"""What a transport answers from what it knows alone, whichever network thread keeps that up to date."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

from swarm.errors import Refusal, TransportError
from swarm.net.config import NetworkSettings
from swarm.net.membership.member import Member
from swarm.net.membership.own_entry import Profile
from swarm.net.records.identity import Identity
from swarm.net.records.large import INLINE_BYTES
from swarm.protocols import RequestHandler, StreamHandler
from swarm.reasons import Reason
from swarm.types import NetworkStatus, PeerRecord, RunManifest


class MemberTransport(ABC):
    """The part of `Transport` that two networks have in common: mailboxes, run, peers and counts."""

    def __init__(
        self,
        settings: NetworkSettings,
        identity: Identity,
        manifest: bytes | None = None,
        profile: Profile | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A node that has not started; with `manifest` (sealed) it brings the run, without it asks its bootstraps.

        `identity` must come from a file, which the network's library reads. Raises `ConfigError` for a bad bootstrap
        address, and `TransportError` for a bad manifest.
        """
        if identity.path is None:
            raise TransportError("the identity must be kept in a file, for the network to read")
        self.peer_id = identity.peer_id
        self._identity_path = identity.path
        self._settings = settings
        try:
            self._member = Member(settings, identity, profile or Profile(), manifest, clock)
        except Refusal as refusal:
            raise _bad_manifest(refusal) from refusal
        self._thread: threading.Thread | None = None
        self._settled = threading.Event()
        """The network is up, or has failed for good."""
        self._failure: str | None = None

    def manifest(self) -> RunManifest | None:
        """The run this node is in; None until known."""
        return self._member.run.manifest

    def sealed_manifest(self) -> bytes | None:
        """The manifest as its founder signed it."""
        return self._member.run.sealed

    def set_manifest(self, sealed: bytes) -> None:
        """Join the run of a sealed manifest. Raises `TransportError` when it is invalid or of another run."""
        try:
            self._member.run.adopt(sealed)
        except Refusal as refusal:
            raise _bad_manifest(refusal) from refusal
        self._wake()

    def publish(self, record: bytes) -> None:
        """Queue a record for everyone in the run; the oldest waiting one makes room when nobody is connected."""
        self._require_running()
        if self._member.run.manifest is None:
            self._member.counters.add("no_run")
        elif len(record) > self._settings.max_record_bytes:
            self._member.counters.add("drop_oversized")
        else:
            self._member.records.offer(record)
            self._wake()

    def has_room(self) -> bool:
        """Whether one more record can be published without the oldest that waits making room for it."""
        # A larger one waits as its announcement.
        return self._member.records.outbox.has_room(INLINE_BYTES)

    def drain(self) -> list[bytes]:
        """Records that arrived since the last call, oldest first."""
        self._require_running()
        return self._member.records.inbox.drain()

    def wait(self, timeout_s: float) -> bool:
        """Block until there is something to drain; whether there is."""
        self._require_running()
        return self._member.records.inbox.wait(timeout_s)

    def status(self) -> NetworkStatus:
        """The network as it was at most a second or so ago."""
        return self._member.status()

    def peers(self) -> tuple[PeerRecord, ...]:
        """What others have said about themselves; entries may have expired."""
        return tuple(record for record, _ in self._member.peers.known.values())

    def complaints(self) -> list[tuple[str, Reason]]:
        """(peer id, reason) of what peers did to this node's network since the last call."""
        return self._member.complaints.take()

    def trust(self, peer_ids: Collection[str]) -> None:
        """Take in what these peers sign at a member's rate, and others' at a newcomer's."""
        self._member.records.trust(peer_ids)

    def multiaddrs(self) -> tuple[str, ...]:
        """Addresses under which others can reach this node, each ending in `/p2p/PEER_ID`."""
        return self._member.own.multiaddrs()

    def observed(self, peer_id: str) -> tuple[str, ...]:
        """Where a peer's connections come from or go to; empty when it has none, or none for a second yet."""
        return self._member.peers.observed.get(peer_id, ())

    def serve(self, protocol: str, handler: RequestHandler) -> None:
        """Answer requests for `protocol`, on the network thread."""
        self.serve_stream(protocol, lambda remote, request: iter([handler(remote, request)]))

    @abstractmethod
    def serve_stream(self, protocol: str, handler: StreamHandler) -> None:
        """Answer requests for `protocol` chunk by chunk, on the network thread."""

    def counters(self) -> dict[str, int]:
        """Cumulative counts, see `Transport.counters`; also what went wrong and how often it was mended."""
        records = self._member.records
        drops = {"drop_inbox": records.inbox.num_dropped, "drop_outbox": records.outbox.num_dropped}
        return {**self._member.counters.snapshot(), **drops}

    @abstractmethod
    def _require_running(self) -> None:
        """Raises `TransportError` before `start`, after `close`, and when the network is lost for good."""

    @abstractmethod
    def _wake(self) -> None:
        """Have the network thread look at the outbox and the run again."""


def _bad_manifest(refusal: Refusal) -> TransportError:
    """The refusal of a manifest as the caller of a transport hears of it."""
    return TransportError(f"the run's manifest was refused: {refusal}")
