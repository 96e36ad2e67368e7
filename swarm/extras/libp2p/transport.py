"""The pure Python transport: py-libp2p for connections and requests; for platforms without the go daemon.

It is interoperable with nodes on hivemind's daemon: same stream protocols, records and peer ids. It has no DHT:
it asks the run's members for peers. It opens no ports on routers, listens on TCP only, and neither uses nor provides
relays.

All asynchronous code runs on one network thread, in trio; two mailboxes connect it to the node's thread. This module
can be imported without libp2p: `start` imports it.

----

Fetching a run's manifest with py-libp2p; see `backends`.

Importing this imports libp2p; see `host`.
"""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import trio

from swarm.errors import PeerUnreachable, Refusal, TransportError
from swarm.extras.libp2p.host import Host, open_host
from swarm.net.config import NetworkSettings
from swarm.net.guard import Counters
from swarm.net.membership.member import Profile
from swarm.net.membership.transport import MemberTransport
from swarm.net.records.identity import KEY_BYTES, PRIVATE_KEY_HEADER, Identity
from swarm.net.records.wire import MAX_MANIFEST_BYTES, open_manifest
from swarm.net.services.requests import MANIFEST_PROTOCOL, no_manifest
from swarm.protocols import StreamHandler
from swarm.types import RunManifest

if TYPE_CHECKING:
    import trio

    from swarm.extras.libp2p.session import Session


logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_RESTARTS_IN_A_ROW = 5
FIRST_RESTART_PAUSE_S = 0.25
STEADY_AFTER_S = 60.0
"""A host that ran for this time resets the count of restarts."""
CLOSE_TIMEOUT_S = 5.0


class Libp2pTransport(MemberTransport):
    """`Transport` over py-libp2p."""

    def __init__(
        self,
        settings: NetworkSettings,
        identity: Identity,
        manifest: bytes | None = None,
        profile: Profile | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """See `MemberTransport`."""
        super().__init__(settings, identity, manifest, profile, clock=clock)
        self._listen = settings.listen
        self._session: Session | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope: trio.CancelScope | None = None
        self._closing = threading.Event()

    def start(self) -> None:
        """Start the network thread and wait until it listens. Raises `TransportError`, but not for absent peers."""
        if self._thread is not None:
            raise TransportError("a transport can be started only once")
        _require_libp2p()
        self._thread = threading.Thread(target=self._live, name="swarm-network", daemon=True)
        self._thread.start()
        self._settled.wait()
        if self._failure is not None:
            self.close()
            raise TransportError(self._failure)

    def serve_stream(self, protocol: str, handler: StreamHandler) -> None:
        """Answer requests for `protocol` chunk by chunk, on the network thread."""
        self._member.answering.handlers = {**self._member.answering.handlers, protocol: handler}
        if self._session is not None:
            self._soon(self._session.serve)

    def request(self, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
        """Ask one peer. Raises `PeerUnreachable`. Never call it in a handler: that would deadlock."""
        self._require_running()
        session = self._session
        if session is None:
            raise PeerUnreachable(f"no request can be sent to {peer_id} now: {self._member.detail}")
        question = partial(session.call, peer_id, protocol, payload, timeout_s)
        return self._done(session, question, timeout_s + CLOSE_TIMEOUT_S)

    def stream(
        self, peer_id: str, protocol: str, payload: bytes, timeout_s: float, max_bytes: int
    ) -> Generator[bytes, None, None]:
        """Chunks of one peer's answer, read on demand. Raises `PeerUnreachable`. Never call it in a handler."""
        self._require_running()
        session = self._session
        if session is None:
            raise PeerUnreachable(f"no request can be sent to {peer_id} now: {self._member.detail}")
        chunks = session.stream(peer_id, protocol, payload, timeout_s, max_bytes)
        return self._taken(session, chunks, 3 * timeout_s + CLOSE_TIMEOUT_S)

    def _taken(
        self, session: Session, chunks: AsyncGenerator[bytes, None], timeout_s: float
    ) -> Generator[bytes, None, None]:
        """The items of an asynchronous iterator on this thread, each read on demand."""

        async def following() -> bytes | None:
            return await anext(chunks, None)

        try:
            while (chunk := self._done(session, following, timeout_s)) is not None:
                yield chunk
        finally:
            # Do not wait: an abandoned iterator may be collected on the network thread itself.
            self._soon(partial(session.run_step, Future(), chunks.aclose))

    def _done(self, session: Session, step: Callable[[], Awaitable[T]], timeout_s: float) -> T:
        outcome: Future[T] = Future()
        if not self._soon(partial(session.run_step, outcome, step)):
            raise PeerUnreachable("the network was closed during the request")
        try:
            return outcome.result(timeout_s)
        except TimeoutError as error:
            outcome.cancel()
            raise PeerUnreachable(f"no answer within {timeout_s:g} s") from error

    def ban(self, peer_ids: Collection[str]) -> None:
        """Ban exactly these peers: disconnect them, do not dial them, pass on nothing that they write or forward."""
        self._member.peers.ban(peer_ids)
        if self._session is not None:
            self._soon(self._session.refresh_soon)

    def close(self) -> None:
        """Leave the swarm and stop the network thread."""
        self._closing.set()
        if self._thread is None:
            return
        if self._scope is not None:
            self._soon(self._scope.cancel)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _require_running(self) -> None:
        if self._failure is not None:
            raise TransportError(self._failure)
        if self._closing.is_set() or self._thread is None:
            raise TransportError("the transport must be started before use, and not used after close")

    def _wake(self) -> None:
        if self._session is not None:
            self._soon(self._session.wake)

    def _soon(self, action: Callable[[], None]) -> bool:
        """Run an action on the network thread; False if the thread is not running."""
        if self._token is None:
            return False
        # trio raises RuntimeError if its loop has ended.
        with suppress(RuntimeError):
            self._token.run_sync_soon(action)
            return True
        return False

    def _live(self) -> None:
        """Keep a host running until closed or until it fails too often."""
        failures = 0
        while not self._closing.is_set():
            born = time.monotonic()
            reason = self._live_once()
            self._session = self._token = self._scope = None
            self._member.peers.remember()
            self._member.peers.update(frozenset(), frozenset())
            if self._closing.is_set():
                break
            if not self._settled.is_set():
                self._failure = reason
                break
            failures = 1 if time.monotonic() - born > STEADY_AFTER_S else failures + 1
            if failures > MAX_RESTARTS_IN_A_ROW:
                self._failure = f"the network failed {failures} times in a row, the last time because {reason}"
                logger.error(self._failure)
                break
            self._member.counters.add("network_restarts")
            self._member.detail = f"restarting the network: {reason}"
            logger.warning("restarting the network: %s", reason)
            self._closing.wait(FIRST_RESTART_PAUSE_S * 2 ** (failures - 1))
        self._settled.set()

    def _live_once(self) -> str:
        """Run one host from start to end; returns why it ended."""
        import trio

        try:
            trio.run(self._host_and_session)
        except Exception as error:
            # py-libp2p parses strangers' input: an error there costs a restart, not the node.
            expected = _innermost(error)
            logger.log(
                logging.DEBUG if isinstance(expected, TransportError) else logging.ERROR,
                "the network session failed",
                exc_info=True,
            )
            return str(expected) if isinstance(expected, TransportError) else repr(expected)
        return "it ended"

    async def _host_and_session(self) -> None:
        import trio

        from swarm.extras.libp2p.host import open_host
        from swarm.extras.libp2p.session import Session

        self._token = trio.lowlevel.current_trio_token()
        member = self._member
        settings = self._settings
        async with open_host(
            self._seed(), self._listen, settings.announce, member.counters, settings.daemon_bytes
        ) as host:
            if host.peer_id != self.peer_id:
                raise TransportError(f"{self._identity_path} holds the key of {host.peer_id} instead of {self.peer_id}")
            # Keep the ports: after a restart others find this node at the same address.
            self._listen = host.listening()
            # Cancel the session only, so that the host can say goodbye to its peers.
            with trio.CancelScope() as self._scope:
                if not self._closing.is_set():
                    self._session = Session(member, host)
                    member.detail = "started"
                    await self._session.run(started=self._settled.set)

    def _seed(self) -> bytes:
        encoded = self._identity_path.read_bytes()
        return encoded[len(PRIVATE_KEY_HEADER) : len(PRIVATE_KEY_HEADER) + KEY_BYTES]


def _require_libp2p() -> None:
    """Import the session's modules on the caller's thread: a racing import can fail on half-initialised modules."""
    if "hivemind.proto" in sys.modules:
        raise TransportError(
            "this process has imported hivemind, beside which libp2p cannot run: use one transport per process"
        )
    try:
        import swarm.extras.libp2p.session  # noqa: F401
    except ImportError as error:
        raise TransportError(
            f"py-libp2p cannot be imported ({error}); install it with: pip install libp2p==0.8.1"
        ) from error


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def fetch(peers: Mapping[str, tuple[str, ...]], timeout_s: float, run_id: str | None) -> tuple[RunManifest, bytes]:
    """The first manifest that a peer has, decoded and as its founder sealed it. Raises `PeerUnreachable`."""
    found: list[tuple[RunManifest, bytes]] = []
    failures: list[str] = []
    refusals: list[Refusal] = []

    async def ask_all() -> None:
        with trio.move_on_after(timeout_s) as limit:
            # It does not listen, so any key will do.
            async with open_host(secrets.token_bytes(KEY_BYTES), (), (), Counters()) as host:
                for peer_id, addresses in peers.items():
                    try:
                        found.append(await _ask(host, peer_id, addresses, timeout_s, run_id))
                        return
                    except PeerUnreachable as error:
                        failures.append(str(error))
                    except Refusal as refusal:
                        refusals.append(refusal)
                        failures.append(f"{', '.join(addresses)}: its manifest was refused: {refusal}")
        if limit.cancelled_caught:
            failures.append(f"no answer within {timeout_s:g} s")

    try:
        trio.run(ask_all)
    except ExceptionGroup as group:
        raise TransportError(f"the network could not be started: {group.exceptions[0]!r}") from group
    if not found:
        raise no_manifest(failures, refusals)
    return found[0]


async def _ask(
    host: Host, peer_id: str, addresses: tuple[str, ...], timeout_s: float, run_id: str | None
) -> tuple[RunManifest, bytes]:
    await host.connect(peer_id, addresses)
    sealed = await host.call(peer_id, MANIFEST_PROTOCOL, b"", timeout_s, MAX_MANIFEST_BYTES)
    if not sealed:
        raise PeerUnreachable(f"{', '.join(addresses)}: it does not know the run yet")
    return open_manifest(sealed, run_id), sealed
