"""The part of a node's session that all network libraries share: joining, publishing, requests.

join      manifest from a connected peer  -> the run     (peers are asked in turn until one knows the run)
publish   outbox                          -> feed        (paced; waits while no member is connected)

and the loops of `following` and `upkeep`. Independent of asyncio and trio: a subclass provides the runtime, and adds
dialling and observation.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

from swarm.errors import PeerUnreachable, Refusal
from swarm.net.addresses.dial import Backoff
from swarm.net.membership.dialling import Dialler, Dialling
from swarm.net.membership.following import FETCHED_AT_ONCE, GREETED_AT_ONCE, Following
from swarm.net.membership.member import Member
from swarm.net.membership.upkeep import DOWNLOADS_AT_ONCE, PULLS_AT_ONCE, Upkeep
from swarm.net.records.feed import FOLLOWED_AT_ONCE
from swarm.net.runtime import AsyncRuntime
from swarm.net.services.requests import MANIFEST_PROTOCOL
from swarm.net.services.streams import StreamAdmission

logger = logging.getLogger(__name__)

ASK_AGAIN_AFTER_S = 1.0
MANIFEST_TIMEOUT_S = 5.0
RECORDS_PER_S, BYTES_PER_S = 200.0, 6e6
"""Rates of own records, so that a burst does not displace what followers have not read."""


class Network(Dialler, Protocol):
    """Operations of the network library. They raise `PeerUnreachable`."""

    async def call(self, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
        """The answer of a connected peer."""

    def stream(
        self, peer_id: str, protocol: str, payload: bytes, timeout_s: float, max_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        """Chunks of a connected peer's answer."""


class MemberSession:
    """A node's session on one network."""

    def __init__(self, member: Member, network: Network, runtime: AsyncRuntime) -> None:
        """Run `member` on a started network."""
        self._member = member
        self._network = network
        self._runtime = runtime
        self._dialling = Dialling(member, network, runtime)
        self._upkeep = Upkeep(member, self.stream, runtime)
        self._following = Following(member, self.stream, runtime)
        self._run_known = runtime.signal()
        self._peers_changed = runtime.signal()
        self._refresh_soon = runtime.signal()
        self._outgoing = runtime.signal()
        self._asking = Backoff(member.settings.retry_s, longest_s=member.settings.retry_s)
        member.answering.admission = StreamAdmission(member.complaints.add, member.records.is_proven)
        member.answering.on_banned = member.greetings.on_change = self.refresh_soon

    def wake(self) -> None:
        """Recheck the outbox, the chosen downloads and the run. Call on the network thread, like all methods here."""
        self._outgoing.set()
        if self._member.run.manifest is not None:
            self._run_known.set()
            self._member.records.queue_pulls()

    def refresh_soon(self) -> None:
        """Recheck at once which peers are connected and banned."""
        self._refresh_soon.set()

    async def call(self, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
        """Ask one peer, after dialling it if necessary. Raises `PeerUnreachable`."""
        left_s = await self._reach(peer_id, timeout_s)
        return await self._network.call(peer_id, protocol, payload, left_s)

    async def stream(
        self, peer_id: str, protocol: str, payload: bytes, timeout_s: float, max_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        """Chunks of one peer's answer; dials it first if necessary. Raises `PeerUnreachable`."""
        await self._reach(peer_id, timeout_s)
        async with aclosing(self._network.stream(peer_id, protocol, payload, timeout_s, max_bytes)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def serve(self) -> None:
        """Register handlers that were added since the last call."""
        raise NotImplementedError

    async def _reach(self, peer_id: str, timeout_s: float) -> float:
        """Connect to a peer. Returns the seconds that are left. Raises `PeerUnreachable`."""
        raise NotImplementedError

    async def _supervise(self, loop: Callable[[], Awaitable[None]]) -> None:
        await self._member.guard.supervise(loop, self._runtime)

    async def _in_run(self, loop: Callable[[], Awaitable[None]]) -> None:
        await self._run_known.wait_for(math.inf)
        await loop()

    async def _join(self) -> None:
        """Ask connected peers for the manifest until the run is known, bootstraps first: the user trusts them."""
        run, peers = self._member.run, self._member.peers
        while run.manifest is None:
            now = time.monotonic()
            for peer_id in sorted(peers.connected, key=lambda peer_id: peer_id not in peers.bootstrap):
                if run.manifest is None and self._asking.wait_s(peer_id, now) <= 0:
                    await self._ask_for_manifest(peer_id)
            if run.manifest is None:
                self._peers_changed.clear()
                await self._peers_changed.wait_for(ASK_AGAIN_AFTER_S)
        logger.info("joined run %s", run.manifest.run_id)
        self._run_known.set()

    async def _ask_for_manifest(self, peer_id: str) -> None:
        try:
            sealed = await self._network.call(peer_id, MANIFEST_PROTOCOL, b"", MANIFEST_TIMEOUT_S)
            if sealed:
                self._member.run.adopt(sealed)
                return
        except PeerUnreachable as error:
            logger.debug("no manifest from %s: %s", peer_id, error)
        except Refusal as refusal:
            self._member.counters.add("refused_manifests")
            self._member.versions.refused(peer_id, refusal)
            logger.warning("refused the manifest that %s sent: %s", peer_id, refusal)
        self._asking.failed(peer_id, time.monotonic())

    def _loops_in_run(self) -> list[Callable[[], Awaitable[None]]]:
        """The loops that run once the run is known."""
        upkeep, following = self._upkeep, self._following
        return [
            self._publish_outgoing,
            upkeep.repair,
            upkeep.exchange_peers,
            *[upkeep.download] * DOWNLOADS_AT_ONCE,
            *[upkeep.pull] * PULLS_AT_ONCE,
            *[following.greet] * GREETED_AT_ONCE,
            *[following.follow] * FOLLOWED_AT_ONCE,
            *[following.fetch] * FETCHED_AT_ONCE,
        ]

    def _update_peers(self, connected: frozenset[str]) -> bool:
        """Note who is connected; whether new members of the run are among them."""
        member, peers = self._member, self._member.peers
        before = peers.connected, peers.in_run
        peers.update(connected, member.greetings.members())
        if (peers.connected, peers.in_run) != before:
            self._following.peers_changed()
        return bool(peers.in_run - before[1])

    def _changed(self, before: frozenset[str]) -> None:
        """The members changed from `before`."""
        self._peers_changed.set()
        self._upkeep.members_changed(first=not before)

    async def _publish_outgoing(self) -> None:
        while True:
            self._outgoing.clear()
            num_bytes = self._member.records.hand_out() if self._member.peers.in_run else 0
            if not num_bytes:
                await self._outgoing.wait_for(math.inf)
                continue
            await self._runtime.sleep(max(1 / RECORDS_PER_S, num_bytes / BYTES_PER_S))
