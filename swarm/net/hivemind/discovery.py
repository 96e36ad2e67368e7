"""Peer discovery through the directory process, which is restarted when it fails.

Nothing waits for the directory: while it is down, only the discovery of new peers stops.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable
from pathlib import Path

from swarm.children import Backoff
from swarm.errors import DirectoryError, DirectoryLost
from swarm.net.hivemind.directory import Directory
from swarm.net.membership.dialling import ENOUGH_PEERS, FEW_PEERS
from swarm.net.membership.member import Member
from swarm.net.runtime import Signal

logger = logging.getLogger(__name__)

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
"""Members that renew their entry each time; of more, as many by chance: the holders of the directory serve no more of
them, and it always has about a thousand entries."""


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
