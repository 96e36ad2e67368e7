"""The life of a node on one daemon: a handful of loops that run until the daemon dies.

dial      bootstraps and known peers not connected  -> connections          (backoff for each, for ever)
reserve   places at relays, for those who cannot be dialled -> own addresses (renewed every minute)
observe   the daemon's connections                  -> state, wakes the rest (every second)
join      manifest from a connected peer            -> the run              (until there is one)
hear      gossip on the run's topic                 -> inbox
tell      outbox                                    -> gossip               (paced; waits while nobody hears)
discover  own record -> the DHT -> records of others                        (every `announce_every_s`)

and those of `upkeep`: repair, download, acquaint.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from functools import partial

from swarm.errors import ConfigError, PeerUnreachable, RejectedGroup, TransportError
from swarm.net.asyncio_waits import AsyncioSignal, AsyncioWaits
from swarm.net.daemon import Daemon
from swarm.net.dht import PeerDirectory
from swarm.net.dial import Backoff, by_peer
from swarm.net.manifest import MANIFEST_PROTOCOL
from swarm.net.nat import Places
from swarm.net.state import NodeState
from swarm.net.upkeep import DOWNLOADS_AT_ONCE, Upkeep

logger = logging.getLogger(__name__)

OBSERVE_EVERY_S = 1.0
MANIFEST_TIMEOUT_S = 5.0
MAX_DIALS_AT_ONCE = 8
ENOUGH_PEERS = 32
"""Gossip needs no full mesh: peers found in the directory are dialled up to this many connections."""
FEW_PEERS = 3
"""With fewer, those remembered from earlier are dialled too."""
RECORDS_PER_S = 200.0
BYTES_PER_S = 6e6
"""Gossip is lossless to twice this rate; unpaced bursts lose up to a sixth of their messages."""


SETTLE_S = 1.0
"""A message published within a heartbeat of the first peer's arrival can miss it."""
EPITAPH_S = 1.0


class Session:
    """One daemon's worth of a node."""

    def __init__(self, state: NodeState, daemon: Daemon) -> None:
        """Run `state` on a daemon that has just started."""
        self._state = state
        self._daemon = daemon
        self._upkeep = Upkeep(state, daemon.stream, AsyncioWaits())
        self._dialling = Backoff(state.settings.retry_s)
        self._asking = Backoff(state.settings.retry_s, longest_s=state.settings.retry_s)
        self._places = Places(state.relays)
        self._failures: dict[str, str] = {}
        self._run_known = asyncio.Event()
        self._peers_changed = AsyncioSignal()
        self._outgoing = asyncio.Event()
        self._serving: set[str] = set()

    async def run(self) -> str:
        """Everything above, until the daemon is gone; says how that showed."""
        reasons = ["it ended"]
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._watch())
                loops.create_task(self._answer())
                for loop in (
                    self._dial,
                    self._reserve,
                    self._observe,
                    self._join,
                    self._hear,
                    self._tell,
                    self._discover,
                ):
                    loops.create_task(loop())
                for keep in (self._upkeep.repair, self._upkeep.acquaint, *[self._upkeep.download] * DOWNLOADS_AT_ONCE):
                    loops.create_task(self._in_run(keep))
        except* TransportError as errors:
            reasons = [str(error) for error in errors.exceptions]
        # When a daemon dies everything fails at once: its exit code says more than whichever loop noticed first.
        with suppress(TimeoutError):
            async with asyncio.timeout(EPITAPH_S):
                return await self._daemon.wait_closed()
        return "; ".join(reasons)

    async def serve(self) -> None:
        """Register handlers added since the last call."""
        for protocol in self._state.handlers:
            if protocol in self._serving:
                continue  # also what another call is registering just now
            self._serving.add(protocol)
            await self._daemon.answer(protocol, partial(self._state.handle, protocol))

    def wake(self) -> None:
        """Look again at the outbox and the run; call on the network thread."""
        self._outgoing.set()
        if self._state.manifest is not None:
            self._run_known.set()

    async def request(self, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
        """Ask one peer. Raises `PeerUnreachable`."""
        return await self._daemon.call(peer_id, protocol, payload, timeout_s)

    def stream(
        self, peer_id: str, protocol: str, payload: bytes, timeout_s: float, max_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        """Chunks of one peer's answer. Raises `PeerUnreachable`."""
        return self._daemon.stream(peer_id, protocol, payload, timeout_s, max_bytes)

    async def _in_run(self, loop: Callable[[], Awaitable[None]]) -> None:
        await self._run_known.wait()
        await loop()

    async def _watch(self) -> None:
        raise TransportError(await self._daemon.wait_closed())

    async def _answer(self) -> None:
        self._daemon.admits = self._state.admits
        await self.serve()

    async def _observe(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(OBSERVE_EVERY_S)

    async def look(self) -> None:
        """Note who is connected now, and hang up on those who are banned."""
        state = self._state
        before = state.in_run
        topic = state.topic
        state.observed = await self._daemon.remote_addresses()
        connected = frozenset(state.observed)
        for peer_id in connected & state.banned:
            state.counters.add("banned_connections")
            # It may have gone by itself meanwhile.
            with suppress(TransportError):
                await self._daemon.disconnect(peer_id)
        state.see(connected, await self._daemon.subscribers(topic) if topic else frozenset())
        moved = state.locate((*await self._daemon.addresses(), *self._places.addresses(connected)))
        state.detail = "; ".join(filter(None, (self._describe(), state.reachability())))
        if moved or state.in_run - before:
            self._peers_changed.set()
            self._upkeep.found(first=not before)
        self.wake()

    async def _dial(self) -> None:
        while True:
            now = time.monotonic()
            due = [peer_id for peer_id in self._wanted() if self._dialling.wait_s(peer_id, now) <= 0]
            results = await asyncio.gather(*map(self._dial_one, due[:MAX_DIALS_AT_ONCE]))
            if any(results):
                await self.look()
            await asyncio.sleep(min(OBSERVE_EVERY_S, self._state.settings.retry_s))

    def _wanted(self) -> dict[str, tuple[str, ...]]:
        # An expired record is better than nothing to a node that lost everyone.
        state = self._state
        now = state.clock()
        wanted = {**self._places.relays, **state.bootstrap}
        if len(state.connected) < ENOUGH_PEERS:
            for peer_id, (record, _) in state.known.items():
                if record.expires_at > now or not state.connected:
                    with suppress(ConfigError):
                        wanted[peer_id] = (*wanted.get(peer_id, ()), *by_peer(record.multiaddrs).get(peer_id, ()))
        if len(state.in_run) < FEW_PEERS:
            for peer_id, addresses in reversed(state.remembered.items()):
                wanted[peer_id] = tuple(dict.fromkeys((*wanted.get(peer_id, ()), *addresses)))
        unwanted = {*state.connected, *state.banned, state.identity.peer_id}
        return {peer_id: addresses for peer_id, addresses in wanted.items() if addresses and peer_id not in unwanted}

    async def _dial_one(self, peer_id: str) -> bool:
        addresses = self._wanted().get(peer_id, ())
        try:
            await self._daemon.connect(peer_id, addresses)
        except PeerUnreachable as error:
            logger.debug("dial failed: %s", error)
            self._state.counters.add("dial_failures")
            self._failures[peer_id] = str(error)
            self._dialling.failed(peer_id, time.monotonic())
            return False
        self._failures.pop(peer_id, None)
        self._dialling.succeeded(peer_id)
        return True

    async def _reserve(self) -> None:
        while self._places.relays:
            for relay in self._places.due(self._state.connected, time.monotonic()):
                try:
                    limits = await self._daemon.circuit_limits(relay)
                except PeerUnreachable as error:
                    logger.info("no place at a relay: %s", error)
                    self._places.refused(relay, time.monotonic())
                else:
                    logger.debug("a place at %s, %s", relay, limits)
                    self._places.granted(relay, time.monotonic())
                await self.look()
            await asyncio.sleep(OBSERVE_EVERY_S)

    def _describe(self) -> str:
        state = self._state
        if state.in_run and state.manifest is not None:
            return f"connected to {len(state.in_run)} peers"
        missing = [peer_id for peer_id in state.bootstrap if peer_id in self._failures]
        if state.connected:
            return f"connected to {len(state.connected)} peers, none seen in the run yet"
        if not missing:
            return "waiting for peers" if not state.bootstrap else "dialling the bootstraps"
        wait_s = min(self._dialling.wait_s(peer_id, time.monotonic()) for peer_id in missing)
        reasons = "; ".join(self._failures[peer_id] for peer_id in missing)
        return f"no bootstrap reachable: {reasons}; next try in {wait_s:.0f} s"

    async def _join(self) -> None:
        while self._state.manifest is None:
            now = time.monotonic()
            # Bootstraps first: they are the ones the user trusts to say which run this is.
            for peer_id in sorted(self._state.connected, key=lambda peer_id: peer_id not in self._state.bootstrap):
                if self._state.manifest is None and self._asking.wait_s(peer_id, now) <= 0:
                    await self._ask_for_run(peer_id)
            if self._state.manifest is None:
                self._peers_changed.clear()
                await self._peers_changed.happens(OBSERVE_EVERY_S)
        logger.info("in the run %s", self._state.manifest.run_id)
        self._run_known.set()

    async def _ask_for_run(self, peer_id: str) -> None:
        try:
            sealed = await self._daemon.call(peer_id, MANIFEST_PROTOCOL, b"", MANIFEST_TIMEOUT_S)
            if sealed:
                self._state.adopt(sealed)
                return
        except PeerUnreachable as error:
            logger.debug("no manifest: %s", error)
        except RejectedGroup as refusal:
            self._state.counters.add("refused_manifests")
            logger.warning("refused the manifest that %s sent: %s", peer_id, refusal)
        self._asking.failed(peer_id, time.monotonic())

    async def _hear(self) -> None:
        await self._run_known.wait()
        topic = self._state.topic
        assert topic is not None
        if not self._state.profile.listed:
            return
        await self._daemon.subscribe(topic, self._state.receive)
        raise TransportError("the daemon ended the subscription")

    async def _tell(self) -> None:
        await self._run_known.wait()
        topic = self._state.topic
        assert topic is not None
        settled = False
        while True:
            if not self._state.in_run:
                settled = False
            elif not settled:
                await asyncio.sleep(SETTLE_S)
                settled = True
            record = self._state.outbox.take() if settled else None
            if record is None:
                await self._outgoing.wait()
                self._outgoing.clear()
                continue
            await self._daemon.publish(topic, record)
            self._state.counters.add("published")
            await asyncio.sleep(max(1 / RECORDS_PER_S, len(record) / BYTES_PER_S))

    async def _discover(self) -> None:
        await self._run_known.wait()
        state = self._state
        assert state.manifest is not None
        directory: PeerDirectory | None = None
        met: frozenset[str] = frozenset()
        pause_s = OBSERVE_EVERY_S
        while True:
            self._peers_changed.clear()
            try:
                if directory is None:
                    directory = await PeerDirectory.create(
                        self._daemon.p2p, state.manifest.run_id, state.clock, keeps=state.profile.listed
                    )
                met = (met & state.in_run) | await directory.meet(state.in_run - met)
                record = state.sealed_own_record()
                if state.profile.listed and not await directory.announce(state.identity.peer_id, *record):
                    state.counters.add("announcements_refused")
                state.learn(await directory.read())
            except Exception:
                # hivemind's DHT raises whatever its peers' answers make of it; the next round starts afresh.
                state.counters.add("dht_errors")
                logger.debug("a discovery round failed", exc_info=True)
            # A peer's DHT comes up a little after its connection, and its record later still: look again soon at first.
            # A round is work for all who are asked: nodes that started together shall not go on together.
            if await self._peers_changed.happens(pause_s * random.uniform(0.8, 1.2)):
                pause_s = OBSERVE_EVERY_S
                await asyncio.sleep(OBSERVE_EVERY_S)
            else:
                pause_s = min(4 * pause_s, state.settings.announce_every_s)
