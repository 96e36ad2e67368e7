"""A node's session on one daemon: loops that run until the daemon dies.

dial      bootstraps and known unconnected peers    -> connections           (back-off for each, forever)
reserve   relay reservations, if not dialable       -> own addresses         (renewed every minute)
observe   the daemon's connections                  -> peers, wakes the rest (every second)
discover  own record -> DHT; DHT -> others' records, while there are few peers (every `announce_every_s`)

The other loops are those of `MemberSession`: joining, publishing, following and upkeep.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from swarm.errors import PeerUnreachable, TransportError
from swarm.net.addresses.nat import DirectUpgrades, Reservations
from swarm.net.hivemind.daemon.process import Daemon, DaemonTooLarge
from swarm.net.hivemind.discovery import Discovery
from swarm.net.hivemind.runtime import AsyncioRuntime
from swarm.net.membership.dialling import Dialling
from swarm.net.membership.member import Member
from swarm.net.membership.session import MemberSession
from swarm.net.services.stream_admission import StreamAdmission

logger = logging.getLogger(__name__)

OBSERVE_EVERY_S = 1.0
EXIT_REASON_S = 1.0


class Session(MemberSession):
    """A node's session on one daemon."""

    def __init__(self, member: Member, daemon: Daemon) -> None:
        """Run `member` on a started daemon."""
        runtime = AsyncioRuntime()
        gate = daemon.gate
        dialling = Dialling(
            member,
            daemon.connect,
            runtime,
            relays=lambda: member.peers.relays,
            dials_claims=gate.datagrams or bool(gate.problem),
        )
        super().__init__(member, daemon, runtime, dialling)
        self._daemon = daemon
        self._reservations = Reservations(lambda: member.peers.relays)
        self._upgrades = DirectUpgrades()
        self._discovery = Discovery(
            member, daemon.control, self._run_known, self._peers_changed, dialling.needs_members
        )
        self._serving: set[str] = set()

    async def run(self) -> str:
        """Run all loops until the daemon is gone; returns the reason. Raises `DaemonTooLarge`."""
        reasons, too_large = ["it ended"], list[DaemonTooLarge]()
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._watch())
                loops.create_task(self._watch_memory())
                for loop in (
                    self._dial,
                    self._reserve,
                    self._observe,
                    self._join,
                    self._discovery.discover,
                ):
                    loops.create_task(self._supervise(loop))
                for later in self._loops_in_run():
                    loops.create_task(self._supervise(partial(self._in_run, later)))
        except* TransportError as errors:
            reasons = [str(error) for error in errors.exceptions]
            too_large = [error for error in errors.exceptions if isinstance(error, DaemonTooLarge)]
        if too_large:
            raise too_large[0]
        # When a daemon dies, all loops fail at once; its exit code says more than the first error.
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_REASON_S):
                return await self._daemon.wait_closed()
        return "; ".join(reasons)

    async def serve(self) -> None:
        """Register handlers added since the last call."""
        answering = self._member.answering
        for protocol in answering.handlers:
            if protocol in self._serving:
                continue  # including those that another call is registering now
            self._serving.add(protocol)
            await self._daemon.answer(protocol, partial(answering.handle, protocol))

    async def _reach(self, peer_id: str, timeout_s: float) -> float:
        connected = self._member.peers.connected
        left_s = await self._dialling.reach(peer_id, connected, timeout_s)
        if peer_id not in connected:
            # If the daemon has died, the request itself will fail.
            with suppress(TransportError):
                await self.refresh()
        return left_s

    async def _watch(self) -> None:
        raise TransportError(await self._daemon.wait_closed())

    async def _watch_memory(self) -> None:
        while True:
            self._daemon.check_size()
            await asyncio.sleep(OBSERVE_EVERY_S)

    async def answer(self) -> None:
        """Begin to answer requests: before `run`, and before others learn this node's address."""
        answering, incoming = self._member.answering, self._daemon.incoming
        incoming.admission = StreamAdmission(self._member.complaints.add, self._member.records.is_proven)
        incoming.admits = answering.admits
        incoming.pace = answering.uploads.spend
        self._daemon.gate.on_refused = partial(self._member.counters.add, "dials_refused")
        answering.on_banned = self._member.greetings.on_change = self.refresh_soon
        await self.serve()

    async def _observe(self) -> None:
        while True:
            self._refresh_soon.clear()
            await self.refresh()
            await self._refresh_soon.wait_for(OBSERVE_EVERY_S)

    async def refresh(self) -> None:
        """Update the connected peers, and disconnect banned ones."""
        member, peers = self._member, self._member.peers
        before = peers.in_run
        peers.observed = await self._daemon.remote_addresses()
        connected = frozenset(peers.observed)
        for peer_id in connected & peers.banned:
            member.counters.add("banned_connections")
            # The peer may have disconnected meanwhile.
            with suppress(TransportError):
                await self._daemon.disconnect(peer_id)
        new = self._update_peers(connected)
        moved = member.own.locate((*await self._daemon.addresses(), *self._reservations.addresses(connected)))
        member.detail = "; ".join(filter(None, (self._dialling.describe(), member.reachability())))
        if moved or new:
            self._changed(before)
        self.wake()

    async def _dial(self) -> None:
        async with asyncio.TaskGroup() as dials:
            while True:
                await self._upgrade_relayed()
                for peer_id, addresses in self._dialling.due(self._member.peers.connected).items():
                    dials.create_task(self._dial_one(peer_id, addresses))
                await asyncio.sleep(min(OBSERVE_EVERY_S, self._member.settings.retry_s))

    async def _dial_one(self, peer_id: str, addresses: tuple[str, ...]) -> None:
        with self._dialling.under_way(peer_id):
            if await self._dialling.dial(peer_id, addresses):
                # If the daemon has died, the other loops tell.
                with suppress(TransportError):
                    await self.refresh()

    async def _upgrade_relayed(self) -> None:
        observed, own = self._member.peers.observed, self._member.own.addresses
        upgrades = self._upgrades.due(observed, own, self._dialling.addresses, time.monotonic())
        await self._disconnect(upgrades, "detours_left")

    async def _disconnect(self, peer_ids: Iterable[str], counter: str) -> None:
        for peer_id in peer_ids:
            self._member.counters.add(counter)
            with suppress(TransportError):
                await self._daemon.disconnect(peer_id)
                await self.refresh()

    async def _reserve(self) -> None:
        while True:
            for relay in self._reservations.due(self._member.peers.connected, time.monotonic()):
                try:
                    limits = await self._daemon.circuit_limits(relay)
                except PeerUnreachable as error:
                    logger.info("%s", error)
                    self._reservations.refused(relay, time.monotonic())
                else:
                    logger.debug("reserved at the relay %s with %s", relay, limits)
                    self._reservations.granted(relay, time.monotonic())
                await self.refresh()
            await asyncio.sleep(OBSERVE_EVERY_S)
