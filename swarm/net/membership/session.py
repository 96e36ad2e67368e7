"""The part of a node's session that both network libraries share: joining, publishing, requests.

join      manifest from a connected peer  -> the run     (until there is one)
publish   outbox                          -> gossip      (paced; waits while no member is connected)

Independent of asyncio and trio: a subclass provides the runtime, and adds dialling, observation and subscription.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

from swarm.net.membership.dialling import Dialling
from swarm.net.membership.joining import Joining
from swarm.net.membership.member import Member
from swarm.net.membership.upkeep import Upkeep
from swarm.net.runtime import AsyncRuntime

BYTES_PER_S = 6e6
"""hivemind's gossip is lossless up to twice this rate; one busy interpreter drains py-libp2p's queues at this rate."""
SETTLE_S = 1.0
"""A message published within one heartbeat of the first peer's arrival may not reach it."""


class Network(Protocol):
    """Operations of the network library. All but `publish` raise `PeerUnreachable`."""

    async def call(self, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
        """The answer of a connected peer."""
        ...

    def stream(
        self, peer_id: str, protocol: str, payload: bytes, timeout_s: float, max_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        """Chunks of a connected peer's answer."""
        ...

    async def publish(self, topic: str, record: bytes) -> None:
        """Publish a record by gossip."""
        ...


class MemberSession:
    """A node's session on one network."""

    def __init__(
        self, member: Member, network: Network, runtime: AsyncRuntime, dialling: Dialling, records_per_s: float
    ) -> None:
        """Run `member` on a started network whose gossip carries `records_per_s` without loss."""
        self._member = member
        self._network = network
        self._runtime = runtime
        self._dialling = dialling
        self._records_per_s = records_per_s
        self._upkeep = Upkeep(member, self.stream, runtime)
        self._run_known = runtime.signal()
        self._peers_changed = runtime.signal()
        self._refresh_soon = runtime.signal()
        self._outgoing = runtime.signal()
        self._joining = Joining(member, network.call, self._peers_changed)

    def wake(self) -> None:
        """Recheck the outbox and the run. Call on the network thread, like all methods here."""
        self._outgoing.set()
        if self._member.run.manifest is not None:
            self._run_known.set()

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

    async def _reach(self, peer_id: str, timeout_s: float) -> float:
        """Connect to a peer. Returns the seconds that are left. Raises `PeerUnreachable`."""
        raise NotImplementedError

    async def _supervise(self, loop: Callable[[], Awaitable[None]]) -> None:
        await self._member.guard.supervise(loop, self._runtime)

    async def _in_run(self, loop: Callable[[], Awaitable[None]]) -> None:
        await self._run_known.wait_for(math.inf)
        await loop()

    async def _join(self) -> None:
        await self._joining.join()
        self._run_known.set()

    async def _topic(self) -> str:
        """The run's topic, once the run is known."""
        await self._run_known.wait_for(math.inf)
        topic = self._member.run.topic
        assert topic is not None
        return topic

    def _changed(self, before: frozenset[str]) -> None:
        """The members changed from `before`."""
        self._peers_changed.set()
        self._upkeep.members_changed(first=not before)

    async def _publish_outgoing(self) -> None:
        topic = await self._topic()
        settled = False
        while True:
            if not self._member.peers.in_run:
                settled = False
            elif not settled:
                await self._runtime.sleep(SETTLE_S)
                settled = True
            record = self._member.records.outbox.take() if settled else None
            if record is None:
                await self._outgoing.wait_for(math.inf)
                self._outgoing.clear()
                continue
            await self._network.publish(topic, record)
            self._member.counters.add("published")
            self._member.counters.add("published_bytes", len(record))
            await self._runtime.sleep(max(1 / self._records_per_s, len(record) / BYTES_PER_S))
