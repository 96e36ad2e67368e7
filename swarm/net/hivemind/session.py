"""A node's session on one daemon: loops that run until the daemon dies.

dial      bootstraps and known unconnected peers    -> connections           (back-off for each, forever)
reserve   relay reservations, if not dialable       -> own addresses         (renewed every minute)
observe   the daemon's connections                  -> peers, wakes the rest (every second)
receive   gossip on the run's topic                 -> inbox
discover  own record -> DHT; DHT -> others' records, while there are few peers (every `announce_every_s`)

The other loops are those of `MemberSession` (join, publish) and of `upkeep` (repair, download, exchange peers).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from swarm.errors import PeerUnreachable, TransportError
from swarm.net.addresses.nat import DirectUpgrades, Reservations, relay_of
from swarm.net.hivemind.daemon.process import Daemon, DaemonTooLarge
from swarm.net.hivemind.discovery import Discovery
from swarm.net.hivemind.runtime import AsyncioRuntime
from swarm.net.membership.dialling import Dialling, SilentPeers
from swarm.net.membership.member import Member
from swarm.net.membership.session import MemberSession
from swarm.net.membership.upkeep import DOWNLOADS_AT_ONCE, PULLS_AT_ONCE
from swarm.net.services.stream_admission import StreamAdmission

logger = logging.getLogger(__name__)

OBSERVE_EVERY_S = 1.0
RECORDS_PER_S = 200.0
"""Without pacing, bursts lose up to a sixth of their messages."""
EXIT_REASON_S = 1.0


class Session(MemberSession):
    """A node's session on one daemon."""

    def __init__(self, member: Member, daemon: Daemon) -> None:
        """Run `member` on a started daemon."""
        runtime = AsyncioRuntime()
        dialling = Dialling(member, daemon.connect, runtime, relays=lambda: member.peers.relays)
        super().__init__(member, daemon, runtime, dialling, RECORDS_PER_S)
        self._daemon = daemon
        self._reservations = Reservations(lambda: member.peers.relays)
        self._upgrades = DirectUpgrades()
        self._silent = SilentPeers()
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
                    self._receive_gossip,
                    self._publish_outgoing,
                    self._discovery.discover,
                ):
                    loops.create_task(self._supervise(loop))
                for keep in (
                    self._upkeep.repair,
                    self._upkeep.exchange_peers,
                    *[self._upkeep.download] * DOWNLOADS_AT_ONCE,
                    *[self._upkeep.pull] * PULLS_AT_ONCE,
                ):
                    loops.create_task(self._supervise(partial(self._in_run, keep)))
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
        incoming.admission = StreamAdmission(
            self._member.complaints.add, is_proven=self._member.records.admission.has_merit
        )
        incoming.admits = answering.admits
        incoming.pace = answering.uploads.spend
        answering.on_banned = self.refresh_soon
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
        topic = member.run.topic
        peers.observed = await self._daemon.remote_addresses()
        connected = frozenset(peers.observed)
        for peer_id in connected & peers.banned:
            member.counters.add("banned_connections")
            # The peer may have disconnected meanwhile.
            with suppress(TransportError):
                await self._daemon.disconnect(peer_id)
        peers.update(connected, await self._daemon.subscribers(topic) if topic else frozenset())
        moved = member.own.locate((*await self._daemon.addresses(), *self._reservations.addresses(connected)))
        member.detail = "; ".join(filter(None, (self._dialling.describe(), member.reachability())))
        if moved or peers.in_run - before:
            self._changed(before)
        self.wake()

    async def _dial(self) -> None:
        async with asyncio.TaskGroup() as dials:
            while True:
                await self._upgrade_relayed()
                await self._reconnect_silent()
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

    async def _reconnect_silent(self) -> None:
        member, peers = self._member, self._member.peers
        if member.run.manifest is None or not member.own.profile.listed:
            return
        direct = [peer_id for peer_id, ends in peers.observed.items() if ends and not all(map(relay_of, ends))]
        now = member.clock()
        members = {peer_id for peer_id, (record, _) in peers.known.items() if record.expires_at > now}
        await self._disconnect(self._silent.due(direct, peers.in_run, members, time.monotonic()), "unheard_left")

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

    async def _receive_gossip(self) -> None:
        topic = await self._topic()
        if not self._member.own.profile.listed:
            return
        await self._daemon.subscribe(topic, self._member.guard.guarded(self._member.records.receive_gossip))
        raise TransportError("the daemon ended the subscription")
