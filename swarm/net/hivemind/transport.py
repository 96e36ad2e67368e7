"""The default transport: hivemind's go daemon for connections and requests; its DHT for discovery.

All asynchronous code runs on one network thread; two mailboxes connect it to the node's thread. This module can be
imported without hivemind: `start` imports it.

----

Fetching a run's manifest with hivemind's daemon; see `backends`."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING

from swarm.errors import PeerUnreachable, Refusal, TransportError
from swarm.net.addresses.dial import probe
from swarm.net.addresses.listening import check_free, with_port
from swarm.net.addresses.nat import nat_arguments
from swarm.net.config import NetworkSettings
from swarm.net.membership.member import Profile
from swarm.net.membership.transport import MemberTransport
from swarm.net.records.identity import Identity
from swarm.net.records.wire import open_manifest
from swarm.net.services.requests import MANIFEST_PROTOCOL, no_manifest
from swarm.protocols import StreamHandler
from swarm.types import RunManifest

if TYPE_CHECKING:
    from swarm.net.hivemind.daemon import Daemon
    from swarm.net.hivemind.session import Session
if TYPE_CHECKING:
    from swarm.net.hivemind.daemon import Daemon


logger = logging.getLogger(__name__)

START_TIMEOUTS_S = (15.0, 30.0)
"""The second is for a loaded machine."""
MAX_RESTARTS_IN_A_ROW = 5
FIRST_RESTART_PAUSE_S = 0.25
STEADY_AFTER_S = 60.0
"""A daemon that ran for this time resets the count of restarts."""
CLOSE_TIMEOUT_S = 5.0

UNWATCHED = "strangers may have the network daemon dial addresses that they claim, as it cannot be watched here"


class HivemindTransport(MemberTransport):
    """`Transport` over hivemind's daemon and DHT."""

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
        self._listen: tuple[str, ...] = ()
        self._session: Session | None = None
        self._daemon: Daemon | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._failures = 0
        """Consecutive daemons that failed early."""
        self._closed = False

    def start(self) -> None:
        """Start the network thread and wait for its daemon. Raises `TransportError`, but not for absent peers."""
        if self._thread is not None:
            raise TransportError("a transport can be started only once")
        for address in self._settings.listen:
            check_free(address)
        # Imported on the caller's thread: a racing import can fail on half-initialised modules.
        from swarm.net.hivemind.daemon import quiet_hivemind

        quiet_hivemind()
        self._thread = threading.Thread(target=self._run_loop, name="swarm-network", daemon=True)
        self._thread.start()
        self._settled.wait()
        if self._failure is not None:
            self.close()
            raise TransportError(self._failure)

    def serve_stream(self, protocol: str, handler: StreamHandler) -> None:
        """Answer requests for `protocol` chunk by chunk, on the network thread."""
        self._member.answering.handlers = {**self._member.answering.handlers, protocol: handler}
        if self._loop is not None and self._session is not None:
            asyncio.run_coroutine_threadsafe(self._session.serve(), self._loop)

    def request(self, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
        """Ask one peer. Raises `PeerUnreachable`. Never call it in a handler: that would deadlock."""
        self._require_running()
        session, loop = self._session, self._loop
        if session is None or loop is None:
            raise PeerUnreachable(f"no request can be sent to {peer_id} now: {self._member.detail}")
        answer = asyncio.run_coroutine_threadsafe(session.call(peer_id, protocol, payload, timeout_s), loop)
        try:
            return answer.result(timeout_s + CLOSE_TIMEOUT_S)
        except TimeoutError as error:
            answer.cancel()
            raise PeerUnreachable(f"{peer_id} did not answer {protocol} within {timeout_s:g} s") from error

    def stream(
        self, peer_id: str, protocol: str, payload: bytes, timeout_s: float, max_bytes: int
    ) -> Generator[bytes, None, None]:
        """Chunks of one peer's answer, read on demand. Raises `PeerUnreachable`. Never call it in a handler."""
        self._require_running()
        session, loop = self._session, self._loop
        if session is None or loop is None:
            raise PeerUnreachable(f"no request can be sent to {peer_id} now: {self._member.detail}")
        chunks = session.stream(peer_id, protocol, payload, timeout_s, max_bytes)
        return _taken(chunks, loop, 3 * timeout_s + CLOSE_TIMEOUT_S)

    def ban(self, peer_ids: Collection[str]) -> None:
        """Ban exactly these peers; takes effect at once, or when the daemon is next up."""
        self._member.peers.ban(peer_ids)
        session, loop = self._session, self._loop
        if session is not None and loop is not None and not loop.is_closed():
            asyncio.run_coroutine_threadsafe(session.refresh(), loop)

    def close(self) -> None:
        """Stop the daemon and the network thread."""
        self._closed = True
        if self._thread is None:
            return
        if self._loop is not None and self._main is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _require_running(self) -> None:
        if self._failure is not None:
            raise TransportError(self._failure)
        if self._closed or self._thread is None:
            raise TransportError("the transport must be started before use, and not used after close")

    def _wake(self) -> None:
        session, loop = self._session, self._loop
        if session is not None and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(session.wake)

    def _run_loop(self) -> None:
        self._loop = loop = asyncio.new_event_loop()
        loop.set_exception_handler(self._note_stray_error)
        try:
            loop.run_until_complete(self._live())
        except asyncio.CancelledError:
            logger.debug("network thread closed")
        except Exception as error:
            # Last resort: the node must be told, and stop.
            logger.exception("the network thread failed")
            self._failure = f"the network thread failed: {error!r}"
        finally:
            self._session = None
            self._settled.set()
            # Not `asyncio.run`, which would wait here for abandoned name look-ups.
            loop.run_until_complete(_end_strays())
            loop.close()

    def _note_stray_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        # hivemind leaves unawaited tasks behind that fail, mostly when a daemon dies.
        self._member.counters.add("stray_errors")
        logger.debug("stray error on the network thread: %s", context)

    async def _live(self) -> None:
        """Keep a daemon and a session running until cancelled or until they fail too often."""
        self._main = asyncio.current_task()
        while not self._closed:
            born = time.monotonic()
            reason = await self._live_once(START_TIMEOUTS_S[min(self._failures, len(START_TIMEOUTS_S) - 1)])
            if time.monotonic() - born > STEADY_AFTER_S:
                self._failures = 0
            self._failures += 1
            failures = self._failures
            self._member.peers.update(frozenset(), frozenset())
            if failures > (MAX_RESTARTS_IN_A_ROW if self._settled.is_set() else len(START_TIMEOUTS_S) - 1):
                self._failure = f"the network failed {failures} times in a row, the last time because {reason}"
                logger.error(self._failure)
                return
            self._member.counters.add("daemon_restarts")
            self._member.detail = f"restarting the network: {reason}"
            logger.warning("restarting the network daemon: %s", reason)
            await asyncio.sleep(FIRST_RESTART_PAUSE_S * 2 ** (failures - 1))

    async def _live_once(self, timeout_s: float) -> str:
        """Run one daemon from start to end; returns why it ended."""
        from swarm.net.hivemind.daemon import Daemon, DaemonTooLarge, start_relay
        from swarm.net.hivemind.session import Session

        try:
            # The ports are chosen here and kept: after a restart others find this node at the same address.
            self._listen = self._listen or tuple(map(with_port, self._settings.listen))
            start = partial(
                Daemon.start,
                listen=self._listen,
                announce=self._settings.announce,
                identity=self._identity_path,
                nat=nat_arguments(self._settings),
                max_bytes=self._settings.daemon_bytes,
                timeout_s=timeout_s,
            )
            if self._settings.serve_relay:
                self._daemon = await start_relay(start, self._listen, self._settings)
            else:
                self._daemon = await start(processors=self._settings.daemon_processors)
        except TransportError as error:
            self._listen = ()
            return str(error)
        if self._daemon.gate.problem and not self._settled.is_set():
            logger.warning("%s: %s", UNWATCHED, self._daemon.gate.problem)
        try:
            if self._daemon.peer_id != self.peer_id:
                return f"the daemon has the peer id {self._daemon.peer_id} instead of {self.peer_id}"
            self._session = Session(self._member, self._daemon)
            await self._session.answer()
            self._member.own.addresses = await self._daemon.addresses()
            self._member.detail = "started"
            self._settled.set()
            return await self._session.run()
        except DaemonTooLarge as error:
            # Strangers can cause this at any time, so it must never end the node.
            self._failures = 0
            self._member.counters.add("daemon_outgrown")
            return str(error)
        except TransportError as error:
            return str(error)
        except Exception as error:
            # hivemind too parses strangers' input: an error there costs a restart, not the node.
            logger.exception("the network session failed")
            return repr(error)
        finally:
            self._session = None
            self._member.peers.remember()
            await self._daemon.stop()
            self._daemon = None


def _taken(
    chunks: AsyncGenerator[bytes, None], loop: asyncio.AbstractEventLoop, timeout_s: float
) -> Generator[bytes, None, None]:
    """The items of an asynchronous iterator on this thread, each read on demand."""

    async def following() -> bytes | None:
        return await anext(chunks, None)

    try:
        while (chunk := _result(following(), loop, timeout_s)) is not None:
            yield chunk
    finally:
        # Do not wait: an abandoned iterator may be collected on the network thread itself.
        if not loop.is_closed():
            asyncio.run_coroutine_threadsafe(chunks.aclose(), loop)


def _result(
    step: Coroutine[None, None, bytes | None], loop: asyncio.AbstractEventLoop, timeout_s: float
) -> bytes | None:
    if loop.is_closed():
        step.close()
        raise PeerUnreachable("the network was closed during the request")
    try:
        return asyncio.run_coroutine_threadsafe(step, loop).result(timeout_s)
    except (TimeoutError, CancelledError) as error:
        raise PeerUnreachable("the network was closed during the request") from error


async def _end_strays() -> None:
    strays = asyncio.all_tasks() - {asyncio.current_task()}
    for stray in strays:
        stray.cancel()
    await asyncio.gather(*strays, return_exceptions=True)


Peers = Mapping[str, tuple[str, ...]]
"""Multiaddrs by peer id."""


def fetch(peers: Peers, timeout_s: float, run_id: str | None) -> tuple[RunManifest, bytes]:
    """The first manifest that a peer has, decoded and as its founder sealed it. Raises `PeerUnreachable`."""
    return asyncio.run(_fetch(peers, timeout_s, run_id))


async def _fetch(
    peers: Mapping[str, tuple[str, ...]], timeout_s: float, run_id: str | None
) -> tuple[RunManifest, bytes]:
    addresses = [address for group in peers.values() for address in group]
    problems = await asyncio.gather(*map(probe, addresses))
    if all(problems):
        # Checked before hivemind is imported: wrong addresses are common, and this finds them without the slow import.
        raise no_manifest([f"{address}: {problem}" for address, problem in zip(addresses, problems, strict=True)])
    from swarm.net.hivemind.daemon import Daemon, quiet_hivemind

    quiet_hivemind()
    daemon = await Daemon.start(listen=())
    failures: list[str] = []
    refusals: list[Refusal] = []
    try:
        async with asyncio.timeout(timeout_s):
            for peer_id, group in peers.items():
                try:
                    sealed = await _ask(daemon, peer_id, group, timeout_s)
                    return open_manifest(sealed, run_id), sealed
                except PeerUnreachable as error:
                    failures.append(str(error))
                except Refusal as refusal:
                    refusals.append(refusal)
                    failures.append(f"{', '.join(group)}: its manifest was refused: {refusal}")
    except TimeoutError:
        failures.append(f"no answer within {timeout_s:g} s")
    finally:
        await daemon.stop()
    raise no_manifest(failures, refusals)


async def _ask(daemon: Daemon, peer_id: str, addresses: Sequence[str], timeout_s: float) -> bytes:
    await daemon.connect(peer_id, addresses)
    sealed = await daemon.call(peer_id, MANIFEST_PROTOCOL, b"", timeout_s)
    if not sealed:
        raise PeerUnreachable(f"{', '.join(addresses)}: it does not know the run yet")
    return sealed
