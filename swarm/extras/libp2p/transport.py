"""The pure Python transport: py-libp2p for connections and requests; for platforms without the go daemon.

It is interoperable with nodes on hivemind's daemon: same stream protocols, records and peer ids. It has no DHT:
it asks the run's members for peers. It opens no ports on routers, listens on TCP only, and neither uses nor provides
relays.

This module can be imported without libp2p: `start` imports it.
"""

from __future__ import annotations

import logging
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from swarm.errors import PeerUnreachable, TransportError
from swarm.net.guard import Counters
from swarm.net.membership.transport import CLOSED, MemberTransport
from swarm.net.records.identity import KEY_BYTES, PRIVATE_KEY_HEADER
from swarm.net.records.wire import MAX_MANIFEST_BYTES, SealedManifest
from swarm.net.services.requests import MANIFEST_PROTOCOL, ask_for_manifest

if TYPE_CHECKING:
    import trio

    from swarm.extras.libp2p.session import Session

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_RESTARTS_IN_A_ROW = 5
FIRST_RESTART_PAUSE_S = 0.25
STEADY_AFTER_S = 60.0
"""A host that ran for this time resets the count of restarts."""


class Libp2pTransport(MemberTransport):
    """`Transport` over py-libp2p."""

    _listen: tuple[str, ...] | None = None
    """With the ports that the first host got; None before."""
    _token: trio.lowlevel.TrioToken | None = None
    _scope: trio.CancelScope | None = None

    @staticmethod
    def fetch_manifest(peers: Mapping[str, tuple[str, ...]], timeout_s: float, run_id: str | None) -> SealedManifest:
        """See `MemberTransport`."""
        import trio

        try:
            found: SealedManifest = trio.run(_fetch_manifest, peers, timeout_s, run_id)
            return found
        except ExceptionGroup as group:
            if isinstance(error := _innermost(group), PeerUnreachable):
                raise error from None
            raise TransportError(f"the network could not be started: {error!r}") from group

    def _prepare(self) -> None:
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

    def _stop(self) -> None:
        if self._scope is not None:
            self._soon(self._scope.cancel)

    def _begin(self, step: Callable[[], Awaitable[T]]) -> Future[T]:
        outcome: Future[T] = Future()
        session = cast("Session | None", self._session)
        if session is None or not self._soon(partial(session.run_step, outcome, step)):
            raise PeerUnreachable(CLOSED)
        return outcome

    def _soon(self, action: Callable[[], object]) -> bool:
        if self._token is None:
            return False
        # trio raises RuntimeError if its loop has ended.
        with suppress(RuntimeError):
            self._token.run_sync_soon(action)
            return True
        return False

    def _live(self) -> None:
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
            # py-libp2p parses untrusted input: an error there costs a restart, not the node.
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
        listen = settings.listen if self._listen is None else self._listen
        async with open_host(self._seed(), listen, settings.announce, member.counters, settings.daemon_bytes) as host:
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


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _fetch_manifest(peers: Mapping[str, tuple[str, ...]], timeout_s: float, run_id: str | None) -> SealedManifest:
    from swarm.extras.libp2p.host import TrioRuntime, open_host

    # It does not listen, so any key will do.
    async with open_host(secrets.token_bytes(KEY_BYTES), (), (), Counters()) as host:

        async def ask(peer_id: str, addresses: tuple[str, ...]) -> bytes:
            await host.connect(peer_id, addresses)
            return await host.call(peer_id, MANIFEST_PROTOCOL, b"", timeout_s, MAX_MANIFEST_BYTES)

        return await ask_for_manifest(peers, ask, run_id, timeout_s, TrioRuntime())
