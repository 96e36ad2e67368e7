"""The part of a transport that all libraries share: a node's network thread, its state, and requests to it."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

from swarm.errors import PeerUnreachable, Refusal, TransportError
from swarm.net.config import NetworkSettings
from swarm.net.membership.member import Member, Profile
from swarm.net.membership.session import MemberSession
from swarm.net.records.identity import Identity
from swarm.net.records.large import INLINE_BYTES
from swarm.net.records.wire import SealedManifest
from swarm.protocols import RequestHandler, StreamHandler
from swarm.reasons import Reason
from swarm.types import Arrival, MemberSummary, NetworkStatus, OfferedGroup, PeerRecord, RunManifest

T = TypeVar("T")

CLOSE_TIMEOUT_S = 5.0
CLOSED = "the network was closed during the request"


class MemberTransport(ABC):
    """`Transport` over a library: a subclass runs sessions on the network thread and hands steps over to it."""

    def __init__(
        self,
        settings: NetworkSettings,
        identity: Identity,
        manifest: SealedManifest | None = None,
        profile: Profile | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A node that has not started. With `manifest` it is in that run; otherwise it asks its bootstraps.

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
        self._closing = threading.Event()
        self._session: MemberSession | None = None
        """The current session; None while the network starts."""

    @staticmethod
    @abstractmethod
    def fetch_manifest(peers: Mapping[str, tuple[str, ...]], timeout_s: float, run_id: str | None) -> SealedManifest:
        """The first manifest that one of the peers has; `peers` are multiaddrs by peer id.

        Starts and stops its own network. Raises `PeerUnreachable`, or `TransportError` if the network cannot start.
        """

    def start(self) -> None:
        """Start the network thread and wait until it is up. Raises `TransportError`, but not for absent peers."""
        if self._thread is not None:
            raise TransportError("a transport can be started only once")
        self._prepare()
        self._thread = threading.Thread(target=self._live, name="swarm-network", daemon=True)
        self._thread.start()
        self._settled.wait()
        if self._failure is not None:
            self.close()
            raise TransportError(self._failure)

    def close(self) -> None:
        """Leave the swarm and stop the network thread."""
        self._closing.set()
        if self._thread is not None:
            self._stop()
            self._thread.join(CLOSE_TIMEOUT_S)

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
        """Queue a record for everyone in the run. While no peer is connected, a full queue drops the oldest."""
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

    def summarize(self, summary: MemberSummary | None, measured: bytes = b"") -> None:
        """See `PeerTransport`."""
        self._member.own.summary, self._member.own.measured = summary, measured

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

    def serve_stream(self, protocol: str, handler: StreamHandler) -> None:
        """Answer requests for `protocol` chunk by chunk, on the network thread. Never call it in a handler."""
        self._member.answering.handlers = {**self._member.answering.handlers, protocol: handler}
        if (session := self._session) is not None:
            # A session that ends first registers nothing: the next one registers all.
            with suppress(TransportError):
                self._result(session.serve, CLOSE_TIMEOUT_S, CLOSED)

    def request(self, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
        """Ask one peer. Raises `PeerUnreachable`. Never call it in a handler: that would deadlock."""
        step = partial(self._session_for(peer_id).call, peer_id, protocol, payload, timeout_s)
        late = f"{peer_id} did not answer {protocol} within {timeout_s:g} s"
        return self._result(step, timeout_s + CLOSE_TIMEOUT_S, late)

    def stream(
        self, peer_id: str, protocol: str, payload: bytes, timeout_s: float, max_bytes: int
    ) -> Generator[bytes, None, None]:
        """Chunks of one peer's answer, read on demand. Raises `PeerUnreachable`. Never call it in a handler."""
        session = self._session_for(peer_id)
        chunks = session.stream(peer_id, protocol, payload, timeout_s, max_bytes)
        return self._read(session, chunks, 3 * timeout_s + CLOSE_TIMEOUT_S)

    def _read(
        self, session: MemberSession, chunks: AsyncGenerator[bytes, None], timeout_s: float
    ) -> Generator[bytes, None, None]:
        """The items of an asynchronous iterator on this thread, each read on demand."""

        async def following() -> bytes | None:
            if self._session is not session:
                raise PeerUnreachable(CLOSED)
            return await anext(chunks, None)

        try:
            while (chunk := self._result(following, timeout_s, CLOSED)) is not None:
                yield chunk
        finally:
            # Do not wait: an abandoned iterator may be collected on the network thread itself.
            with suppress(PeerUnreachable):
                self._begin(chunks.aclose)

    def _session_for(self, peer_id: str) -> MemberSession:
        self._require_running()
        if (session := self._session) is None:
            raise PeerUnreachable(f"no request can be sent to {peer_id} now: {self._member.detail}")
        return session

    def _result(self, step: Callable[[], Awaitable[T]], timeout_s: float, late: str) -> T:
        """The result of a step on the network thread. Raises `PeerUnreachable`, with `late` after `timeout_s`."""
        outcome = self._begin(step)
        try:
            return outcome.result(timeout_s)
        except (TimeoutError, CancelledError) as error:
            outcome.cancel()
            raise PeerUnreachable(late) from error

    def ban(self, peer_ids: Collection[str]) -> None:
        """Ban exactly these peers: disconnect them, do not dial them, pass on nothing that they write or forward."""
        self._member.peers.ban(peer_ids)
        if (session := self._session) is not None:
            self._soon(session.refresh_soon)

    def counters(self) -> dict[str, int]:
        """Cumulative counts, see `Transport.counters`, including errors and restarts."""
        records = self._member.records
        drops = {"drop_inbox": records.inbox.num_dropped, "drop_outbox": records.outbox.num_dropped}
        return {**self._member.counters.snapshot(), **drops}

    def _require_running(self) -> None:
        """Raises `TransportError` before `start`, after `close`, and when the network has failed permanently."""
        if self._failure is not None:
            raise TransportError(self._failure)
        if self._closing.is_set() or self._thread is None:
            raise TransportError("the transport must be started before use, and not used after close")

    def _wake(self) -> None:
        """Make the network thread recheck the outbox and the run."""
        if (session := self._session) is not None:
            self._soon(session.wake)

    @abstractmethod
    def _prepare(self) -> None:
        """Check and import on the caller's thread what `_live` needs. Raises `TransportError`.

        A racing import can fail on half-initialised modules.
        """

    @abstractmethod
    def _live(self) -> None:
        """The network thread: run one session after another until closed, or until they fail too often."""

    @abstractmethod
    def _stop(self) -> None:
        """Make the network thread end its session."""

    @abstractmethod
    def _soon(self, action: Callable[[], object]) -> bool:
        """Call an action on the network thread; False if the thread is not running."""

    @abstractmethod
    def _begin(self, step: Callable[[], Awaitable[T]]) -> Future[T]:
        """Start a step on the network thread. Raises `PeerUnreachable` if no session runs there."""


def _bad_manifest(refusal: Refusal) -> TransportError:
    """The refusal of a manifest as a `TransportError`."""
    return TransportError(f"the run's manifest was refused: {refusal}")
