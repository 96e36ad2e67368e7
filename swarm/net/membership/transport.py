"""The part of a transport that both libraries share; the network thread keeps its state current."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

from swarm.errors import Refusal, TransportError
from swarm.net.config import NetworkSettings
from swarm.net.membership.member import Member, Profile
from swarm.net.records.identity import Identity
from swarm.net.records.large import INLINE_BYTES
from swarm.protocols import RequestHandler, StreamHandler
from swarm.reasons import Reason
from swarm.types import Arrival, MemberSummary, NetworkStatus, OfferedGroup, PeerRecord, RunManifest


class MemberTransport(ABC):
    """The part of `Transport` that both networks share: mailboxes, run, peers and counters."""

    def __init__(
        self,
        settings: NetworkSettings,
        identity: Identity,
        manifest: bytes | None = None,
        profile: Profile | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A node that has not started. With `manifest` (sealed) it is in that run; otherwise it asks its bootstraps.

        `identity` must be loaded from a file because the network library reads it. Raises `ConfigError` for a bad
        bootstrap address, and `TransportError` for a bad manifest.
        """
        if identity.path is None:
            raise TransportError("the identity must be loaded from a file, because the network library reads it")
        self.peer_id = identity.peer_id
        self._identity_path = identity.path
        self._settings = settings
        try:
            self._member = Member(settings, identity, profile or Profile(), manifest, clock)
        except Refusal as refusal:
            raise _bad_manifest(refusal) from refusal
        self._thread: threading.Thread | None = None
        self._settled = threading.Event()
        """Set when the network is up or has failed permanently."""
        self._failure: str | None = None

    def manifest(self) -> RunManifest | None:
        """The run that this node is in; None until known."""
        return self._member.run.manifest

    def sealed_manifest(self) -> bytes | None:
        """The manifest as its founder signed it."""
        return self._member.run.sealed

    def set_manifest(self, sealed: bytes) -> None:
        """Join the run of a sealed manifest. Raises `TransportError` if it is invalid or of another run."""
        try:
            self._member.run.adopt(sealed)
        except Refusal as refusal:
            raise _bad_manifest(refusal) from refusal
        self._wake()

    def publish(self, record: bytes) -> None:
        """Queue a record for everyone in the run. While nobody is connected, a full queue drops the oldest."""
        self._require_running()
        if self._member.run.manifest is None:
            self._member.counters.add("no_run")
        elif len(record) > self._settings.max_record_bytes:
            self._member.counters.add("drop_oversized")
        else:
            self._member.records.publish(record)
            self._wake()

    def hold(self, record: bytes) -> None:
        """Keep a record for peers that ask for it."""
        self._member.records.hold(record)

    def pull(self, offered: OfferedGroup, patience_s: float) -> None:
        """Fetch a record on offer; it arrives like any other."""
        self._require_running()
        self._member.records.pull(offered, patience_s)
        self._wake()

    def has_room(self) -> bool:
        """Whether one more record can be published without dropping the oldest in the queue."""
        # A larger record is queued as its announcement.
        return self._member.records.outbox.has_room(INLINE_BYTES)

    def drain(self) -> list[Arrival]:
        """Arrivals since the last call, oldest first."""
        self._require_running()
        return self._member.records.inbox.drain()

    def wait(self, timeout_s: float) -> bool:
        """Block until there are arrivals or the timeout expires; whether there are any."""
        self._require_running()
        return self._member.records.inbox.wait(timeout_s)

    def status(self) -> NetworkStatus:
        """State of the network, at most about a second old."""
        return self._member.status()

    def peers(self) -> tuple[PeerRecord, ...]:
        """Peers' own records; some may have expired."""
        return tuple(record for record, _ in self._member.peers.known.values())

    def summarize(self, summary: MemberSummary) -> None:
        """Tell members how far this node is, with each renewal of its directory entry."""
        self._member.own.summary = summary

    def complaints(self) -> list[tuple[str, Reason]]:
        """(peer id, reason) of complaints about peers since the last call."""
        return self._member.complaints.take()

    def trust(self, peer_ids: Collection[str], known: Collection[str] = (), newcomers: float = 1.0) -> None:
        """Give these authors a member's budget, and all others a newcomer's."""
        self._member.records.trust(peer_ids, known, newcomers)

    def multiaddrs(self) -> tuple[str, ...]:
        """Addresses at which others can reach this node, each ending in `/p2p/PEER_ID`."""
        return self._member.own.multiaddrs()

    def observed(self, peer_id: str) -> tuple[str, ...]:
        """Remote ends of a peer's connections; empty without one, or up to a second after it was made."""
        return self._member.peers.observed.get(peer_id, ())

    def is_banned(self, peer_id: str) -> bool:
        """Whether this node has banned a peer."""
        return peer_id in self._member.peers.banned

    def serve(self, protocol: str, handler: RequestHandler) -> None:
        """Answer requests for `protocol`, on the network thread."""
        self.serve_stream(protocol, lambda remote, request: iter([handler(remote, request)]))

    @abstractmethod
    def serve_stream(self, protocol: str, handler: StreamHandler) -> None:
        """Answer requests for `protocol` chunk by chunk, on the network thread."""

    def counters(self) -> dict[str, int]:
        """Cumulative counts, see `Transport.counters`, including errors and restarts."""
        records = self._member.records
        drops = {"drop_inbox": records.inbox.num_dropped, "drop_outbox": records.outbox.num_dropped}
        return {**self._member.counters.snapshot(), **drops}

    @abstractmethod
    def _require_running(self) -> None:
        """Raises `TransportError` before `start`, after `close`, and when the network has failed permanently."""

    @abstractmethod
    def _wake(self) -> None:
        """Make the network thread recheck the outbox and the run."""


def _bad_manifest(refusal: Refusal) -> TransportError:
    """The refusal of a manifest as a `TransportError`."""
    return TransportError(f"the run's manifest was refused: {refusal}")
