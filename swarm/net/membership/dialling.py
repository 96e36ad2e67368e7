"""Dialling: which peers a session dials, at which addresses and when, and how it reports progress.

Bootstraps that hung up are left alone for a while. A daemon with more than 512 connections closes all but 256 of those
that are older than two minutes. A node that dials again at once is safe for two minutes, so if all do, a bootstrap of
thousands is connected with all of them and shakes hands all the time. A node that does without it leaves its
connection to newcomers.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from swarm.errors import NoConnection, PeerUnreachable
from swarm.lru import LruDict
from swarm.net.addresses.dial import Backoff, ReportedAddresses, host_of, is_name, with_ips
from swarm.net.addresses.nat import relay_of
from swarm.net.bandwidth import TokenBucket
from swarm.net.membership.member import Member
from swarm.net.runtime import AsyncRuntime

logger = logging.getLogger(__name__)

MAX_DIALS_AT_ONCE = 8
"""Bootstraps and relays at a time, and peers of all kinds before others are begun."""
DIAL_TIMEOUT_S = 30.0
"""For all addresses of a peer."""
ENOUGH_PEERS = 32
"""Members are dialled up to this number; gossip needs no full mesh."""
ENOUGH_CHOSEN = ENOUGH_PEERS // 4
"""A node dials until it has dialled so many of its members itself: incoming connections are an attacker's choice."""
FEW_PEERS = 3
"""With fewer members connected, peers remembered from earlier are dialled too."""
STEADY_AFTER_S = 10.0
HUNG_UP_PAUSE_S = 1.0
"""A peer that disconnects within `STEADY_AFTER_S` is paused for `HUNG_UP_PAUSE_S`, twice as long each time."""

AGAIN_PER_S, AGAIN_AT_ONCE = 1 / 60, 3.0
"""Rate of repeated dials, in a public run, of peers that only untrusted peers reported. It applies to a go daemon
without a closed gate, which also dials every address that the peer claimed while it was connected."""
MAX_MET = 4_096
ENOUGH_HOSTS = 8
"""A node does without a bootstrap while it is connected with members at this many hosts that it has dialled itself.
Incoming connections, and the number of peers on one machine, are an attacker's choice."""
KEPT_S = 600.0
"""A bootstrap that ends an older connection has restarted rather than made room, and is dialled at once."""
FIRST_PAUSE_S, MAX_PAUSE_S = 300.0, 1_800.0
"""The pause doubles with every connection that is closed early. It is bounded, so that a node whose members all turn
out to be an attacker's still meets its bootstraps."""
APART = (0.5, 1.0)
"""Factor of a node's pauses: a bootstrap hangs up on hundreds of nodes at once, which must not return together."""


class Dialler(Protocol):
    """The part of a network library that dials."""

    @property
    def uses_relays(self) -> bool:
        """Whether this node needs connections to relays, for reservations there."""

    @property
    def dials_claims(self) -> bool:
        """Whether a dial may also go to addresses that the peer claimed while it was connected."""

    def can_dial(self, address: str) -> bool:
        """Whether the library supports an address."""

    async def connect(self, peer_id: str, addresses: Sequence[str]) -> None:
        """Dial a peer at any of its addresses. Raises `PeerUnreachable`."""


class Dialling:
    """Dials bootstraps, known and remembered peers, with a back-off for each. Independent of asyncio and trio."""

    def __init__(self, member: Member, dialler: Dialler, runtime: AsyncRuntime) -> None:
        self._member = member
        self._peers = member.peers
        self._dialler = dialler
        self._runtime = runtime
        self._backoff = Backoff(member.settings.retry_s)
        self._hung_up = Backoff(HUNG_UP_PAUSE_S)
        self._crowded = CrowdedBootstraps()
        self._chosen: frozenset[str] = frozenset()
        """Connected peers that this node has dialled."""
        self._met = LruDict[str, None](MAX_MET)
        """Peers that were connected in this session."""
        self._again = TokenBucket(AGAIN_PER_S, AGAIN_AT_ONCE)
        self._under_way: set[str] = set()
        """Peers that are being dialled."""
        self._dialled: dict[str, float] = {}
        """Time of each connection that is not yet steady."""
        self._reported = ReportedAddresses()
        self._look()
        self._failures: dict[str, str] = {}
        """Reason of the last failed dial, by bootstrap."""

    def due(self, connected: frozenset[str]) -> dict[str, tuple[str, ...]]:
        """Peers to dial now, with their addresses, given those connected; none that is being dialled already.

        Bootstraps and relays do not wait for others: untrusted addresses may take long to fail.
        """
        now = time.monotonic()
        self._look()
        self._judge(connected, now)
        if not connected and not self._peers.bootstrap:
            self._peers.bootstraps.look_again()
        pauses: list[Backoff | CrowdedBootstraps] = [self._backoff, self._hung_up]
        if does_without(self._chosen & self._peers.in_run, self._peers.observed):
            pauses.append(self._crowded)
        found: dict[str, tuple[str, ...]] = {}
        for peer_id in self._wanted(connected):
            at_once = self._under_way | found.keys()
            if len(at_once & self._given.keys() if peer_id in self._given else at_once) >= MAX_DIALS_AT_ONCE:
                continue
            wait_s = max(pause.wait_s(peer_id, now) for pause in pauses)
            if wait_s <= 0 and (addresses := self.addresses(peer_id)) and self._may_dial(peer_id, now):
                found[peer_id] = addresses
        return found

    def addresses(self, peer_id: str) -> tuple[str, ...]:
        """Known addresses of a peer; none for a banned one."""
        peers = self._peers
        if peer_id in peers.banned or peer_id == self._member.identity.peer_id:
            return ()
        given, reported = self._given.get(peer_id, ()), peers.remembered.get(peer_id, ())
        if peer_id in peers.known:
            # An untrusted record may contain anything, including addresses of other peers.
            suffix, named = f"/p2p/{peer_id}", peers.known[peer_id][0].multiaddrs
            reported = (*(each.removesuffix(suffix) for each in named if each.endswith(suffix)), *reported)
        if not self._private:
            reported = self._reported.choose(
                (address for address in reported if address not in given), time.monotonic()
            )
        return tuple(dict.fromkeys(filter(self._dialler.can_dial, (*given, *reported))))

    def _look(self) -> None:
        """Update what holds for every peer that is considered now."""
        self._private = self._member.own.in_private_run()
        """Whether the run is confined to this machine or local network."""
        self._given = dict(self._peers.relays if self._dialler.uses_relays else {})
        """Addresses from the configuration, of relays and then bootstraps; these may always be dialled."""
        for peer_id, addresses in self._peers.bootstrap.items():
            self._given[peer_id] = (*self._given.get(peer_id, ()), *addresses)

    def _may_dial(self, peer_id: str, now: float) -> bool:
        if self._private or peer_id in self._given:
            return True
        return self._may_dial_again(peer_id, now) and self._reported.may_dial(
            self._peers.reported_by.get(peer_id, ""), now
        )

    def _may_dial_again(self, peer_id: str, now: float) -> bool:
        if not self._dialler.dials_claims or peer_id not in self._met or self._member.records.is_proven(peer_id):
            return True
        return self._again.take(now)

    @contextmanager
    def under_way(self, peer_id: str) -> Iterator[None]:
        """While a peer is dialled, until `due` sees its connection, it is neither due nor counted as lost."""
        self._under_way.add(peer_id)
        try:
            yield
        finally:
            self._under_way.discard(peer_id)

    async def dial(self, peer_id: str, addresses: Sequence[str]) -> bool:
        """Dial a peer that is due; whether it is connected now."""
        try:
            await self._dial(peer_id, addresses, DIAL_TIMEOUT_S)
        except PeerUnreachable as error:
            logger.debug("dialling %s failed: %s", peer_id, error)
            self._member.counters.add("dial_failures")
            if peer_id in self._peers.bootstrap:
                self._failures[peer_id] = str(error)
                self._peers.bootstraps.look_again()
            self._backoff.failed(peer_id, time.monotonic())
            return False
        self._failures.pop(peer_id, None)
        self._backoff.succeeded(peer_id)
        self._dialled[peer_id] = time.monotonic()
        self._chosen |= {peer_id}
        return True

    async def _dial(self, peer_id: str, addresses: Sequence[str], timeout_s: float) -> None:
        """Connect, and record the outcome for addresses that only other peers report. Raises `PeerUnreachable`."""
        given = self._given.get(peer_id, ())
        reported = [] if self._private else [address for address in addresses if address not in given]
        found: Sequence[str] = ()
        try:
            async with self._runtime.timeout(timeout_s):
                # An untrusted name may resolve to a machine in this network, so it is resolved and filtered here; and
                # a machine may have any number of names.
                found = [ip for address in reported for ip in await self._ips(address)]
                found = self._reported.choose(found, time.monotonic())
                if reported and not (given or found):
                    raise PeerUnreachable(
                        f"{', '.join(reported)}: a public run dials only public addresses of a peer that others "
                        "report, and none that failed of late"
                    )
                await self._dialler.connect(peer_id, (*(each for each in addresses if each not in reported), *found))
        except PeerUnreachable:
            self._reported.failed((*reported, *found), time.monotonic())
            raise
        except TimeoutError as error:
            # A request's own limit may be too short for a peer that is far away.
            if timeout_s >= DIAL_TIMEOUT_S:
                self._reported.failed((*reported, *found), time.monotonic())
            raise PeerUnreachable(f"{peer_id} could not be dialled within {timeout_s:g} s") from error
        self._reported.succeeded((*reported, *found))

    async def _ips(self, address: str) -> list[str]:
        return with_ips(address, await self._runtime.look_up(address.split("/")[2])) if is_name(address) else [address]

    async def reach(self, peer_id: str, connected: frozenset[str], timeout_s: float) -> float:
        """Dial a known peer before a request if it is not connected. Returns the rest of `timeout_s`.

        Raises `NoConnection`.
        """
        if peer_id in self._peers.banned:
            raise NoConnection(f"{peer_id} is banned by this node")
        self._look()
        addresses = () if peer_id in connected else self.addresses(peer_id)
        if not addresses:
            return timeout_s
        began = time.monotonic()
        if not (self._private or peer_id in self._given or self._may_dial_again(peer_id, began)):
            raise NoConnection(f"{peer_id} was connected before, and it is not its turn to be dialled again")
        try:
            await self._dial(peer_id, addresses, timeout_s)
        except PeerUnreachable as error:
            raise NoConnection(str(error)) from error
        self._backoff.succeeded(peer_id)
        return max(0.0, timeout_s - (time.monotonic() - began))

    def needs_members(self) -> bool:
        """Whether this node looks for more members."""
        in_run = self._peers.in_run
        # Peers that it dialled and that are no members count too: their number must be bounded.
        return len(self._chosen) < ENOUGH_PEERS and (
            len(in_run) < ENOUGH_PEERS or len(self._chosen & in_run) < ENOUGH_CHOSEN
        )

    def describe(self) -> str:
        """Progress of the connection setup, in words."""
        peers = self._peers
        if peers.in_run and self._member.run.manifest is not None:
            return f"connected to {_peers(peers.in_run)}"
        missing = [peer_id for peer_id in peers.bootstrap if peer_id in self._failures]
        if peers.connected:
            return f"connected to {_peers(peers.connected)}, none seen in the run yet"
        if not missing and not peers.bootstrap:
            problems = "; ".join(f"{entry}: {problem}" for entry, problem in peers.bootstraps.problems().items())
            return f"no bootstrap known: {problems}" if problems else "waiting for peers"
        if not missing:
            return "dialling the bootstraps"
        wait_s = min(self._backoff.wait_s(peer_id, time.monotonic()) for peer_id in missing)
        reasons = "; ".join(self._failures[peer_id] for peer_id in missing)
        return f"no bootstrap reachable: {reasons}; next try in {wait_s:.0f} s"

    def _judge(self, connected: frozenset[str], now: float) -> None:
        """Distinguish steady peers from those that disconnect at once, for example because they banned this node."""
        self._chosen &= connected | self._under_way
        for peer_id in connected:
            self._met[peer_id] = None
        relays = frozenset(relay for address in self._member.own.addresses if (relay := relay_of(address)))
        self._crowded.judge(self._peers.bootstrap, connected, relays, now)
        for peer_id, since in list(self._dialled.items()):
            if peer_id in self._under_way:
                continue
            if peer_id not in connected:
                self._hung_up.failed(peer_id, now)
            elif now - since < STEADY_AFTER_S:
                continue
            else:
                self._hung_up.succeeded(peer_id)
            del self._dialled[peer_id]

    def _wanted(self, connected: frozenset[str]) -> list[str]:
        peers = self._peers
        now = self._member.clock()
        wanted = list(self._given)
        if self.needs_members():
            # A node that lost all peers tries expired records too.
            wanted += (
                peer_id for peer_id, (record, _) in peers.known.items() if record.expires_at > now or not connected
            )
        if len(peers.in_run) < FEW_PEERS:
            wanted += reversed(peers.remembered)
        return [peer_id for peer_id in dict.fromkeys(wanted) if peer_id not in connected | self._under_way]


def _peers(connected: Collection[str]) -> str:
    return "1 peer" if len(connected) == 1 else f"{len(connected)} peers"


class CrowdedBootstraps:
    """Pauses of bootstraps that have hung up. Pure: `Dialling` says what is connected, and applies the pauses."""

    def __init__(self) -> None:
        apart = random.uniform(*APART)
        self._pauses = Backoff(apart * FIRST_PAUSE_S, apart * MAX_PAUSE_S)
        self._since: dict[str, float] = {}
        self._carriers: frozenset[str] = frozenset()
        """Relays of this node's own addresses when they were last connected."""

    def judge(self, bootstraps: Collection[str], connected: frozenset[str], relays: frozenset[str], now: float) -> None:
        """Note which bootstraps are connected and which have hung up; `relays` carry connections to this node now."""
        self._carriers = (self._carriers - connected) | relays
        for peer_id in bootstraps:
            if peer_id in connected:
                self._since.setdefault(peer_id, now)
            elif (since := self._since.pop(peer_id, None)) is not None:
                # Without its relay others cannot dial this node.
                if now - since >= KEPT_S or peer_id in self._carriers:
                    self._pauses.succeeded(peer_id)
                else:
                    self._pauses.failed(peer_id, now)

    def wait_s(self, peer_id: str, now: float) -> float:
        """Seconds until a node that does without this bootstrap may dial it."""
        return self._pauses.wait_s(peer_id, now)


def does_without(chosen: Collection[str], observed: Mapping[str, Sequence[str]]) -> bool:
    """Whether the members that this node has `chosen` to dial suffice, given the remote ends of its connections."""
    # One end of each: a peer may connect from anywhere besides.
    return len({host_of(observed[peer_id][0]) for peer_id in chosen if observed.get(peer_id)}) >= ENOUGH_HOSTS
