"""A node's session on one daemon: loops that run until the daemon dies.

dial      bootstraps and known unconnected peers    -> connections           (back-off for each, forever)
reserve   relay reservations, if not dialable       -> own addresses         (renewed every minute)
observe   the daemon's connections                  -> peers, wakes the rest (every second)
hear      gossip on the run's topic                 -> inbox
discover  own record -> DHT; DHT -> others' records, while there are few peers (every `announce_every_s`)

The other loops are those of `MemberSession` (join, tell) and of `upkeep` (repair, download, acquaint).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from swarm.errors import PeerUnreachable, TransportError
from swarm.net.addresses.nat import Detours, Places, relay_of
from swarm.net.hivemind.daemon import Daemon, Outgrown
from swarm.net.hivemind.discovery import Discovery
from swarm.net.hivemind.waits import AsyncioWaits
from swarm.net.membership.dialling import Dialling, Unheard
from swarm.net.membership.member import Member
from swarm.net.membership.session import MemberSession
from swarm.net.membership.upkeep import DOWNLOADS_AT_ONCE
from swarm.net.services.doors import Doors

logger = logging.getLogger(__name__)

OBSERVE_EVERY_S = 1.0
RECORDS_PER_S = 200.0
"""Without pacing, bursts lose up to a sixth of their messages."""
EPITAPH_S = 1.0


class Session(MemberSession):
    """A node's session on one daemon."""

    def __init__(self, member: Member, daemon: Daemon) -> None:
        """Run `member` on a started daemon."""
        waits = AsyncioWaits()
        dialling = Dialling(member, daemon.connect, waits, relays=member.peers.relays)
        super().__init__(member, daemon, waits, dialling, RECORDS_PER_S)
        self._daemon = daemon
        self._places = Places(member.peers.relays)
        self._detours = Detours()
        self._unheard = Unheard()
        self._discovery = Discovery(member, daemon.control, self._run_known, self._peers_changed)
        self._serving: set[str] = set()

    async def run(self) -> str:
        """Run all loops until the daemon is gone; returns the reason. Raises `Outgrown`."""
        reasons, outgrown = ["it ended"], list[Outgrown]()
        try:
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._watch())
                loops.create_task(self._weigh())
                loops.create_task(self._answer())
                for loop in (
                    self._dial,
                    self._reserve,
                    self._observe,
                    self._join,
                    self._hear,
                    self._tell,
                    self._discovery.discover,
                ):
                    loops.create_task(self._keep(loop))
                for keep in (self._upkeep.repair, self._upkeep.acquaint, *[self._upkeep.download] * DOWNLOADS_AT_ONCE):
                    loops.create_task(self._keep(partial(self._in_run, keep)))
        except* TransportError as errors:
            reasons = [str(error) for error in errors.exceptions]
            outgrown = [error for error in errors.exceptions if isinstance(error, Outgrown)]
        if outgrown:
            raise outgrown[0]
        # When a daemon dies, all loops fail at once; its exit code says more than the first error.
        with suppress(TimeoutError):
            async with asyncio.timeout(EPITAPH_S):
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
                await self.look()
        return left_s

    async def _watch(self) -> None:
        raise TransportError(await self._daemon.wait_closed())

    async def _weigh(self) -> None:
        while True:
            self._daemon.check_size()
            await asyncio.sleep(OBSERVE_EVERY_S)

    async def _answer(self) -> None:
        self._daemon.doors = Doors(self._member.complaints.add)
        answering = self._member.answering
        self._daemon.admits = answering.admits
        self._daemon.pace = answering.uploads.spend
        answering.on_banned = self.look_again
        await self.serve()

    async def _observe(self) -> None:
        while True:
            self._look_again.clear()
            await self.look()
            await self._look_again.happens(OBSERVE_EVERY_S)

    async def look(self) -> None:
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
        peers.see(connected, await self._daemon.subscribers(topic) if topic else frozenset())
        moved = member.own.locate((*await self._daemon.addresses(), *self._places.addresses(connected)))
        member.detail = "; ".join(filter(None, (self._dialling.describe(), member.reachability())))
        if moved or peers.in_run - before:
            self._changed(before)
        self.wake()

    async def _dial(self) -> None:
        while True:
            await self._shorten()
            await self._renew()
            due = self._dialling.due(self._member.peers.connected)
            results = await asyncio.gather(*map(self._dialling.dial, due, due.values()))
            if any(results):
                await self.look()
            await asyncio.sleep(min(OBSERVE_EVERY_S, self._member.settings.retry_s))

    async def _shorten(self) -> None:
        observed, own = self._member.peers.observed, self._member.own.addresses
        detours = self._detours.due(observed, own, self._dialling.addresses, time.monotonic())
        await self._hang_up(detours, "detours_left")

    async def _renew(self) -> None:
        member, peers = self._member, self._member.peers
        if member.run.manifest is None or not member.own.profile.listed:
            return
        direct = [peer_id for peer_id, ends in peers.observed.items() if ends and not all(map(relay_of, ends))]
        now = member.clock()
        members = {peer_id for peer_id, (record, _) in peers.known.items() if record.expires_at > now}
        await self._hang_up(self._unheard.due(direct, peers.in_run, members, time.monotonic()), "unheard_left")

    async def _hang_up(self, peer_ids: Iterable[str], counter: str) -> None:
        for peer_id in peer_ids:
            self._member.counters.add(counter)
            with suppress(TransportError):
                await self._daemon.disconnect(peer_id)
                await self.look()

    async def _reserve(self) -> None:
        while self._places.relays:
            for relay in self._places.due(self._member.peers.connected, time.monotonic()):
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

    async def _hear(self) -> None:
        topic = await self._topic()
        if not self._member.own.profile.listed:
            return
        await self._daemon.subscribe(topic, self._member.guard.hearing(self._member.records.receive))
        raise TransportError("the daemon ended the subscription")
