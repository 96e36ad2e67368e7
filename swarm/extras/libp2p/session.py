"""A node's session on one py-libp2p host: loops that run until one fails or the node is closed.

dial      bootstraps and known unconnected peers    -> connections           (back-off for each, forever)
observe   the host's connections                    -> peers, wakes the rest (every second)

The other loops are those of `MemberSession`: joining, publishing, following and upkeep. The exchange of peers replaces
a directory.

Importing this imports libp2p; see `host`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import trio

from swarm.errors import PeerUnreachable
from swarm.extras.libp2p.host import Host, TrioRuntime, interfaces
from swarm.net.membership.member import Member
from swarm.net.membership.session import MemberSession

logger = logging.getLogger(__name__)

T = TypeVar("T")

OBSERVE_EVERY_S = 1.0
UNANSWERED_AFTER_S = 20.0
"""A connection whose peer answers no ping for this time is replaced; on a slow link, answers wait behind records."""


class Session(MemberSession):
    """A node's session on one host."""

    def __init__(self, member: Member, host: Host) -> None:
        """Run `member` on a started host."""
        super().__init__(member, host, TrioRuntime())
        self._host = host
        self._serving: set[str] = set()
        self._unanswered = Lasting()
        self._loops: trio.Nursery | None = None

    async def run(self, started: Callable[[], None]) -> None:
        """Run all loops until cancelled; calls `started` when others can reach this node."""
        self._host.holdings.blame = self._member.complaints.add
        self._host.slots.is_member = lambda peer_id: peer_id in self._member.peers.in_run
        self._host.gatekeeper = self._member.answering
        await self.serve()
        self._locate()
        started()
        try:
            async with trio.open_nursery() as self._loops:
                for loop in (self._dial, self._observe, self._join):
                    self._loops.start_soon(self._supervise, loop)
                for later in self._loops_in_run():
                    self._loops.start_soon(self._supervise, partial(self._in_run, later))
        finally:
            self._loops = None

    async def serve(self) -> None:
        """See `MemberSession`. Call on the network thread, like all methods here."""
        answering = self._member.answering
        for protocol in answering.handlers.keys() - self._serving:
            self._serving.add(protocol)
            self._host.answer(protocol, partial(answering.handle, protocol))

    async def _reach(self, peer_id: str, timeout_s: float) -> float:
        left_s = await self._dialling.reach(peer_id, self._host.connected(), timeout_s)
        self.refresh_soon()
        return left_s

    def run_step(self, outcome: Future[T], step: Callable[[], Awaitable[T]]) -> None:
        """Run `step` in this session; `outcome` gets its result, or `PeerUnreachable`."""
        if self._loops is not None:
            self._loops.start_soon(self._do, outcome, step)
        elif outcome.set_running_or_notify_cancel():
            outcome.set_exception(PeerUnreachable("the network is starting or closing"))

    async def _do(self, outcome: Future[T], step: Callable[[], Awaitable[T]]) -> None:
        result: T | None = None
        failure: Exception | None = PeerUnreachable("the network was closed during the request")
        try:
            result = await step()
            failure = None
        except Exception as error:
            # Raised by `outcome` on the waiting thread.
            failure = error
        finally:
            if outcome.set_running_or_notify_cancel():
                # Without a failure there is a result.
                outcome.set_exception(failure) if failure else outcome.set_result(result)  # type: ignore[arg-type]

    def _locate(self) -> bool:
        """Note this node's own addresses; whether they changed."""
        announced = self._member.settings.announce
        listening = [address for wildcard in self._host.listening() for address in interfaces(wildcard)]
        return self._member.own.locate(announced or tuple(listening))

    async def _observe(self) -> None:
        member = self._member
        while True:
            self._refresh_soon.clear()
            for peer_id in self._host.connected() & member.peers.banned:
                member.counters.add("banned_connections")
                await self._host.drop(peer_id)
            for peer_id in self._lost(time.monotonic()):
                member.counters.add("mute_connections")
                await self._host.drop(peer_id)
            self._refresh()
            await self._refresh_soon.wait_for(OBSERVE_EVERY_S)

    def _lost(self, now: float) -> frozenset[str]:
        """Peers whose connection is to be replaced; the next one gets the full time again."""
        return self._unanswered.longer_than(UNANSWERED_AFTER_S, self._host.unanswered(), now)

    def _refresh(self) -> None:
        peers = self._member.peers
        before = peers.in_run
        peers.observed = self._host.remote_addresses()
        new = self._update_peers(self._host.connected())
        self._member.detail = self._dialling.describe()
        if self._locate() or new:
            self._changed(before)
        self.wake()

    async def _dial(self) -> None:
        async with trio.open_nursery() as dials:
            while True:
                for peer_id, addresses in self._dialling.due(self._host.connected()).items():
                    dials.start_soon(self._dial_one, peer_id, addresses)
                await trio.sleep(min(OBSERVE_EVERY_S, self._member.settings.retry_s))

    async def _dial_one(self, peer_id: str, addresses: tuple[str, ...]) -> None:
        with self._dialling.under_way(peer_id):
            await self._dialling.dial(peer_id, addresses)
        self.refresh_soon()


class Lasting:
    """For how long without interruption peers have been in some state. Pure."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def longer_than(self, duration_s: float, peer_ids: Collection[str], now: float) -> frozenset[str]:
        """Those of `peer_ids`, which are in the state now, that have been in it for `duration_s`; forgets these."""
        self._since = {peer_id: self._since.get(peer_id, now) for peer_id in peer_ids}
        found = frozenset(peer_id for peer_id, since in self._since.items() if now - since > duration_s)
        for peer_id in found:
            del self._since[peer_id]
        return found
