"""A crowd at one bootstrap, in one process: light peers that dial by the rules of nodes.

`python -m benchmarks.scale.crowd SPEC` reports with JSON lines, once a second, until it is told to quit.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.common.children import commands, emit
from benchmarks.scale.light_peer import LightPeer
from swarm.net.addresses.dial import split_multiaddr
from swarm.net.config import NetworkSettings
from swarm.net.membership.dialling import ENOUGH_PEERS, Dialling
from swarm.net.membership.member import Member, Profile
from swarm.net.records.identity import Identity
from swarm.net.runtime import AsyncioRuntime

LOOK_EVERY_S = 1.0
OTHERS = {f"member-{index}": (f"/ip4/10.0.0.{index}/tcp/4001",) for index in range(ENOUGH_PEERS)}
"""The other members that each peer is connected to. They are made up, because only the bootstrap is measured."""


@dataclass(frozen=True)
class Spec:
    """What the crowd does; the first argument, as JSON."""

    bootstrap: str
    """Multiaddr with the peer id."""
    run_id: str
    num_peers: int
    arrivals_per_s: float

    def as_argument(self) -> str:
        """For the command line."""
        return json.dumps(dataclasses.asdict(self))


class CrowdPeer:
    """A light peer that the code of nodes tells when to dial; it has enough members, and may lose the bootstrap."""

    uses_relays = dials_claims = False

    def __init__(self, spec: Spec) -> None:
        """Not connected."""
        identity = Identity.generate()
        self._member = Member(NetworkSettings(bootstrap=(spec.bootstrap,)), identity, Profile(), None)
        self._dialling = Dialling(self._member, self, AsyncioRuntime())
        self._peer = LightPeer(identity, spec.run_id)
        self._bootstrap = split_multiaddr(spec.bootstrap)[1]
        self._dialing: asyncio.Task[bool] | None = None
        self._since = 0.0
        self.handshakes_s: list[float] = []
        self.held_s: list[float] = []
        """Durations of the connections that the bootstrap has closed."""
        self.failures = 0

    @property
    def connected(self) -> bool:
        """Whether the bootstrap is connected."""
        return self._peer.connected

    async def meet(self) -> None:
        """Dial the other members, which costs nothing."""
        for peer_id, addresses in OTHERS.items():
            await self._dialling.dial(peer_id, addresses)

    def look(self) -> None:
        """Note what has changed, and dial if it is due: what a session does every second."""
        if self._since and not self.connected:
            self.held_s.append(time.monotonic() - self._since)
            self._since = 0.0
        if self._dialing is not None and not self._dialing.done():
            return
        peers = self._member.peers
        own = {self._bootstrap: (self._address,)} if self.connected else {}
        peers.observed = {**OTHERS, **own}
        peers.connected = peers.in_run = frozenset(peers.observed)
        for peer_id, addresses in self._dialling.due(peers.connected).items():
            self._dialing = asyncio.create_task(self._dial(peer_id, addresses))

    @property
    def _address(self) -> str:
        return self._member.peers.bootstrap[self._bootstrap][0]

    async def _dial(self, peer_id: str, addresses: Sequence[str]) -> bool:
        connected = await self._dialling.dial(peer_id, addresses)
        self.failures += not connected
        return connected

    def can_dial(self, address: str) -> bool:
        """See `Dialler`."""
        return True

    async def connect(self, peer_id: str, addresses: Sequence[str]) -> None:
        """See `Dialler`."""
        if peer_id in OTHERS:
            return
        began = time.monotonic()
        await self._peer.connect(addresses[0])
        self._since = time.monotonic()
        self.handshakes_s.append(self._since - began)

    def close(self) -> None:
        """Leave."""
        self._peer.close()


async def crowd(spec: Spec) -> None:
    """Let the peers arrive, and report until told to quit."""
    orders = commands()
    peers: list[CrowdPeer] = []
    began = time.monotonic()
    while orders.empty():
        arrived = min(spec.num_peers, int((time.monotonic() - began) * spec.arrivals_per_s) + 1)
        while len(peers) < arrived:
            peers.append(CrowdPeer(spec))
            await peers[-1].meet()
        for peer in peers:
            peer.look()
            await asyncio.sleep(0)
        emit(
            "crowd",
            at=time.monotonic(),
            arrived=len(peers),
            connected=sum(peer.connected for peer in peers),
            failures=sum(peer.failures for peer in peers),
            handshakes_s=[duration for peer in peers for duration in _taken(peer.handshakes_s)],
            held_s=[duration for peer in peers for duration in _taken(peer.held_s)],
        )
        await asyncio.sleep(LOOK_EVERY_S)
    for peer in peers:
        peer.close()


def _taken(durations: list[float]) -> list[float]:
    taken = durations[:]
    durations.clear()
    return taken


if __name__ == "__main__":
    asyncio.run(crowd(Spec(**json.loads(sys.argv[1]))))
