"""The default transport: hivemind's go daemon for connections and requests; its DHT for discovery.

This module can be imported without hivemind: `start` imports it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from swarm.errors import PeerUnreachable, TransportError
from swarm.net.addresses.dial import probe
from swarm.net.addresses.listening import check_free, with_port
from swarm.net.addresses.nat import nat_arguments
from swarm.net.membership.transport import CLOSED, MemberTransport
from swarm.net.records.wire import SealedManifest
from swarm.net.runtime import AsyncioRuntime
from swarm.net.services.requests import MANIFEST_PROTOCOL, ask_for_manifest, no_manifest

if TYPE_CHECKING:
    from swarm.net.hivemind.daemon import Daemon

logger = logging.getLogger(__name__)

T = TypeVar("T")

START_TIMEOUTS_S = (15.0, 30.0)
"""The second is for a loaded machine."""
MAX_RESTARTS_IN_A_ROW = 5
FIRST_RESTART_PAUSE_S = 0.25
STEADY_AFTER_S = 60.0
"""A daemon that ran for this time resets the count of restarts."""

UNWATCHED = "strangers may have the network daemon dial addresses that they claim, as it cannot be watched here"


class HivemindTransport(MemberTransport):
    """`Transport` over hivemind's daemon and DHT."""

    _listen: tuple[str, ...] = ()
    _daemon: Daemon | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _main: asyncio.Task[None] | None = None
    _failures = 0
    """Consecutive daemons that failed early."""

    @staticmethod
    def fetch_manifest(peers: Mapping[str, tuple[str, ...]], timeout_s: float, run_id: str | None) -> SealedManifest:
        """See `MemberTransport`."""
        return asyncio.run(_fetch_manifest(peers, timeout_s, run_id))

    def _prepare(self) -> None:
        for address in self._settings.listen:
            check_free(address)
        from swarm.net.hivemind.daemon import quiet_hivemind

        quiet_hivemind()

    def _stop(self) -> None:
        if self._main is not None:
            self._soon(self._main.cancel)

    def _soon(self, action: Callable[[], object]) -> bool:
        # asyncio raises RuntimeError if its loop is closed.
        with suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(action)
                return True
        return False

    def _begin(self, step: Callable[[], Awaitable[T]]) -> Future[T]:
        async def stepped() -> T:
            return await step()

        coroutine = stepped()
        with suppress(RuntimeError):  # the loop is closed
            if self._loop is not None:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise PeerUnreachable(CLOSED)

    def _live(self) -> None:
        self._loop = loop = asyncio.new_event_loop()
        loop.set_exception_handler(self._note_stray_error)
        try:
            loop.run_until_complete(self._run_daemons())
        except asyncio.CancelledError:
            logger.debug("network thread closed")
        except Exception as error:
            # Last resort: the node reads the failure and stops.
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

    async def _run_daemons(self) -> None:
        """Keep a daemon and a session running until cancelled or until they fail too often."""
        self._main = asyncio.current_task()
        while not self._closing.is_set():
            born = time.monotonic()
            reason = await self._run_daemon(START_TIMEOUTS_S[min(self._failures, len(START_TIMEOUTS_S) - 1)])
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

    async def _run_daemon(self, timeout_s: float) -> str:
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
            # Any peer can cause this at any time, so it must never end the node.
            self._failures = 0
            self._member.counters.add("daemon_outgrown")
            return str(error)
        except TransportError as error:
            return str(error)
        except Exception as error:
            # hivemind too parses untrusted input: an error there costs a restart, not the node.
            logger.exception("the network session failed")
            return repr(error)
        finally:
            self._session = None
            self._member.peers.remember()
            await self._daemon.stop()
            self._daemon = None


async def _end_strays() -> None:
    strays = asyncio.all_tasks() - {asyncio.current_task()}
    for stray in strays:
        stray.cancel()
    await asyncio.gather(*strays, return_exceptions=True)


async def _fetch_manifest(peers: Mapping[str, tuple[str, ...]], timeout_s: float, run_id: str | None) -> SealedManifest:
    addresses = [address for group in peers.values() for address in group]
    problems = await asyncio.gather(*map(probe, addresses))
    if all(problems):
        # Checked before hivemind is imported: wrong addresses are common, and this finds them without the slow import.
        raise no_manifest([f"{address}: {problem}" for address, problem in zip(addresses, problems, strict=True)])
    from swarm.net.hivemind.daemon import Daemon, quiet_hivemind

    quiet_hivemind()
    daemon = await Daemon.start(listen=())

    async def ask(peer_id: str, addresses: tuple[str, ...]) -> bytes:
        await daemon.connect(peer_id, addresses)
        return await daemon.call(peer_id, MANIFEST_PROTOCOL, b"", timeout_s)

    try:
        return await ask_for_manifest(peers, ask, run_id, timeout_s, AsyncioRuntime())
    finally:
        await daemon.stop()
