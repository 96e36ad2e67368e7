"""A node's session on one daemon: loops that run until the daemon dies.

dial      bootstraps and known unconnected peers    -> connections           (back-off for each, forever)
reserve   relay reservations, if not dialable       -> own addresses         (renewed every minute)
observe   the daemon's connections                  -> peers, wakes the rest (every second)
discover  own record -> DHT; DHT -> others' records, while there are few peers (every `announce_every_s`)

The other loops are those of `MemberSession`: joining, publishing, following and upkeep. Nothing waits for the directory
process: while it restarts, only the discovery of new peers stops.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from swarm.children import Backoff
from swarm.errors import DirectoryError, DirectoryLost, PeerUnreachable, TransportError
from swarm.net.addresses.nat import DirectUpgrades, Reservations
from swarm.net.hivemind.daemon import Daemon, DaemonTooLarge
from swarm.net.hivemind.directory import Directory
from swarm.net.membership.dialling import ENOUGH_PEERS, FEW_PEERS
from swarm.net.membership.member import Member
from swarm.net.membership.session import MemberSession
from swarm.net.runtime import AsyncioRuntime, Signal

logger = logging.getLogger(__name__)

OBSERVE_EVERY_S = 1.0
EXIT_REASON_S = 1.0
ROUND_PAUSE_S = 1.0
FIRST_LOOK_PAUSE_S = 4.0
"""First pause between reads of the directory; it grows fourfold, since the records of new peers appear soon."""
APART = (0.7, 1.3)
"""Random factor of pauses: a read is work for all nodes asked, so nodes that started together must drift apart."""
FIRST_RESTART_PAUSE_S = 0.5
MAX_RESTART_PAUSE_S = 30.0
STEADY_AFTER_S = 60.0
"""A process that ran for this time resets the restart pause."""
RENEWALS = 333
"""Members that renew their entry each time; of more, as many at random: the holders of the directory serve no more of
them, and it always has about a thousand entries."""


class Session(MemberSession):
    """A node's session on one daemon."""

    def __init__(self, member: Member, daemon: Daemon) -> None:
        """Run `member` on a started daemon."""
        super().__init__(member, daemon, AsyncioRuntime())
        self._daemon = daemon
        self._reservations = Reservations()
        self._upgrades = DirectUpgrades()
        self._discovery = Discovery(
            member, daemon.control, self._run_known, self._peers_changed, self._dialling.needs_members
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
        """See `MemberSession`."""
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
        self._daemon.incoming.gatekeeper = self._member.answering
        self._daemon.gate.on_refused = partial(self._member.counters.add, "dials_refused")
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
        peers = self._member.peers
        while True:
            for relay in self._reservations.due(peers.relays, peers.connected, time.monotonic()):
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


class Discovery:
    """Stores the own record in the DHT, and reads other records while there are few peers."""

    def __init__(
        self,
        member: Member,
        control: Path,
        run_known: Signal,
        peers_changed: Signal,
        needs_members: Callable[[], bool],
    ) -> None:
        """Discover for `member` through the daemon with this control socket, once the run is known."""
        self._member = member
        self._control = control
        self._run_known = run_known
        self._peers_changed = peers_changed
        self._needs_members = needs_members

    async def discover(self) -> None:
        """Run forever; restarts the directory process when it fails."""
        restarts = Backoff(FIRST_RESTART_PAUSE_S, MAX_RESTART_PAUSE_S)
        while True:
            born = time.monotonic()
            try:
                await self._live_once()
            except DirectoryError as loss:
                self._member.counters.add("directory_restarts")
                logger.warning("restarting the process of the peer directory: %s", loss)
            now = time.monotonic()
            if now - born > STEADY_AFTER_S:
                restarts.note_success()
            restarts.note_failure(now)
            await asyncio.sleep((restarts.until - now) * random.uniform(*APART))

    async def _live_once(self) -> None:
        # Started before the run is known, so that it is ready by then.
        async with Directory.running() as directory:
            await self._run_known.wait_for(math.inf)
            manifest = self._member.run.manifest
            assert manifest is not None
            await directory.open(self._control, manifest.run_id, keeps=self._member.own.profile.listed)
            await self._look_for_ever(directory, manifest.run_id)

    async def _look_for_ever(self, directory: Directory, run_id: str) -> None:
        member, peers = self._member, self._member.peers
        met: frozenset[str] = frozenset()
        announced: tuple[str, ...] = ()
        look_at, renew_at, pause_s = 0.0, 0.0, FIRST_LOOK_PAUSE_S
        while True:
            self._peers_changed.clear()
            in_run = peers.in_run
            try:
                alone = not met
                met = await directory.add_peers(in_run, first=alone)
                now = time.monotonic()
                moved = announced != member.own.addresses
                if met and (alone or moved or now >= renew_at):
                    if alone or moved or self._has_turn():
                        announced = member.own.addresses
                        await self._announce(directory)
                    renew_at = now + member.settings.announce_every_s * random.uniform(*APART)
                if met and (alone or now >= look_at):
                    await self._look_up(directory, run_id)
                    pause_s = FIRST_LOOK_PAUSE_S if alone else min(4 * pause_s, member.settings.announce_every_s)
                    look_at = now + pause_s * random.uniform(*APART)
            except DirectoryLost:
                raise
            except DirectoryError as error:
                member.counters.add("dht_errors")
                logger.debug("a discovery round failed: %s", error)
            # A peer's DHT starts a little after its connection.
            unmet = not met or bool(in_run - met)
            wait_s = ROUND_PAUSE_S if unmet else max(0.0, min(look_at, renew_at) - time.monotonic())
            await self._peers_changed.wait_for(wait_s)
            await asyncio.sleep(ROUND_PAUSE_S)

    def _has_turn(self) -> bool:
        """Whether to renew the own entry now; a node with few peers does so each time, to be found."""
        member = self._member
        num_members = member.records.offer_rate.num_members()
        return len(member.peers.in_run) < ENOUGH_PEERS or random.random() * num_members < RENEWALS

    async def _look_up(self, directory: Directory, run_id: str) -> None:
        member, peers = self._member, self._member.peers
        if self._needs_members():
            # A node with peers learns of others from them.
            everything = len(peers.in_run) < FEW_PEERS or not member.own.profile.listed
            peers.learn(await directory.read(run_id, member.clock(), everything=everything))

    async def _announce(self, directory: Directory) -> None:
        member = self._member
        if member.own.profile.listed and not await directory.announce(member.identity.peer_id, *member.own.sealed()):
            member.counters.add("announcements_refused")
