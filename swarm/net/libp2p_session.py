"""The life of a node on one py-libp2p host: a handful of loops that run until one fails or the node is closed.

dial      bootstraps and known peers not connected  -> connections          (backoff for each, for ever)
observe   the host's connections                    -> state, wakes the rest (every second)
join      manifest from a connected peer            -> the run              (until there is one)
hear      gossip on the run's topic                 -> inbox
tell      outbox                                    -> gossip               (paced; waits while nobody hears)

and those of `upkeep`: repair, download, acquaint. The last takes the place of a directory.

Importing this imports libp2p; see `libp2p_host`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

import trio

from swarm.errors import ConfigError, PeerUnreachable, RejectedGroup
from swarm.net.dial import Backoff, by_peer
from swarm.net.large import INLINE_BYTES
from swarm.net.libp2p_host import Host, interfaces
from swarm.net.manifest import MANIFEST_PROTOCOL
from swarm.net.nat import CIRCUIT
from swarm.net.state import NodeState
from swarm.net.trio_waits import TrioSignal, TrioWaits
from swarm.net.upkeep import DOWNLOADS_AT_ONCE, Upkeep

logger = logging.getLogger(__name__)

T = TypeVar("T")

OBSERVE_EVERY_S = 1.0
ASK_TIMEOUT_S = 5.0
MAX_DIALS_AT_ONCE = 8
ENOUGH_PEERS = 32
"""Gossip needs no full mesh: peers heard of are dialled up to this many connections."""
FEW_PEERS = 3
"""With fewer, those remembered from earlier are dialled too."""
RECORDS_PER_S = 100.0
BYTES_PER_S = 6e6
"""A peer's queue holds 32 messages, and what does not fit is lost: one busy interpreter empties it at this rate."""
MUTE_AFTER_S = 5.0
"""py-libp2p loses the gossip of a connection made while an earlier one of the same peer ends: then it is made anew."""
SETTLE_S = 1.0
"""A message published within a heartbeat of the first peer's arrival can miss it."""


class Session:
    """One host's worth of a node."""

    def __init__(self, state: NodeState, host: Host) -> None:
        """Run `state` on a host that has just started."""
        self._state = state
        self._host = host
        self._upkeep = Upkeep(state, host.stream, TrioWaits())
        self._dialling = Backoff(state.settings.retry_s)
        self._asking = Backoff(state.settings.retry_s, longest_s=state.settings.retry_s)
        self._failures: dict[str, str] = {}
        self._run_known = trio.Event()
        self._peers_changed = TrioSignal()
        self._someone_came = TrioSignal()
        self._outgoing = TrioSignal()
        self._serving: set[str] = set()
        self._mute_since: dict[str, float] = {}
        self._loops: trio.Nursery | None = None

    async def run(self, started: Callable[[], None]) -> None:
        """Everything above, until cancelled; calls `started` when others can reach this node."""
        self._host.admits = self._state.admits
        self.serve()
        self._note_addresses()
        started()
        upkeep = self._upkeep
        try:
            async with trio.open_nursery() as self._loops:
                for loop in (self._dial, self._observe, self._join, self._hear, self._tell):
                    self._loops.start_soon(loop)
                for keep in (upkeep.repair, upkeep.acquaint, *[upkeep.download] * DOWNLOADS_AT_ONCE):
                    self._loops.start_soon(self._in_run, keep)
        finally:
            self._loops = None

    async def _in_run(self, loop: Callable[[], Awaitable[None]]) -> None:
        await self._run_known.wait()
        await loop()

    def serve(self) -> None:
        """Register handlers added since the last call; on the network thread, as everything here."""
        for protocol in self._state.handlers.keys() - self._serving:
            self._serving.add(protocol)
            self._host.answer(protocol, partial(self._state.handle, protocol))

    def wake(self) -> None:
        """Look again at the outbox and the run."""
        self._outgoing.set()
        if self._state.manifest is not None:
            self._run_known.set()

    def look_again(self) -> None:
        """Look at once who is connected, and who of them is banned."""
        self._someone_came.set()

    async def call(self, peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> bytes:
        """Ask one peer. Raises `PeerUnreachable`."""
        return await self._host.call(peer_id, protocol, payload, timeout_s)

    def stream(
        self, peer_id: str, protocol: str, payload: bytes, timeout_s: float, max_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        """Chunks of one peer's answer. Raises `PeerUnreachable`."""
        return self._host.stream(peer_id, protocol, payload, timeout_s, max_bytes)

    def have_done(self, outcome: Future[T], step: Callable[[], Awaitable[T]]) -> None:
        """Do something in this session; `outcome` gets what comes of it, or `PeerUnreachable`."""
        if self._loops is not None:
            self._loops.start_soon(self._do, outcome, step)
        elif outcome.set_running_or_notify_cancel():
            outcome.set_exception(PeerUnreachable("the network is starting or closing"))

    async def _do(self, outcome: Future[T], step: Callable[[], Awaitable[T]]) -> None:
        result: T | None = None
        failure: Exception | None = PeerUnreachable("the network was closed meanwhile")
        try:
            result = await step()
            failure = None
        except Exception as error:
            # For whoever waits for it, on another thread.
            failure = error
        finally:
            if outcome.set_running_or_notify_cancel():
                # Without a failure there is a result.
                outcome.set_exception(failure) if failure else outcome.set_result(result)  # type: ignore[arg-type]

    def _note_addresses(self) -> None:
        announced = self._state.settings.announce
        listening = [address for wildcard in self._host.listening() for address in interfaces(wildcard)]
        self._state.locate(announced or tuple(listening))

    async def _observe(self) -> None:
        state = self._state
        while True:
            self._someone_came.clear()
            for peer_id in self._host.connected() & state.banned:
                state.counters.add("banned_connections")
                await self._host.drop(peer_id)
            for peer_id in self._mute_for(MUTE_AFTER_S):
                state.counters.add("mute_connections")
                # The next connection has as long again.
                del self._mute_since[peer_id]
                await self._host.drop(peer_id)
            self._look()
            await self._someone_came.happens(OBSERVE_EVERY_S)

    def _mute_for(self, duration_s: float) -> list[str]:
        now = time.monotonic()
        mute = self._host.mute() | frozenset(filter(self._is_missed, self._state.connected - self._state.in_run))
        self._mute_since = {peer_id: self._mute_since.get(peer_id, now) for peer_id in mute}
        return [peer_id for peer_id, since in self._mute_since.items() if now - since > duration_s]

    def _is_missed(self, peer_id: str) -> bool:
        """Whether a peer is a member of the run by its own word, which gossip should hear."""
        entry = self._state.known.get(peer_id)
        return entry is not None and entry[0].expires_at > self._state.clock() and entry[0].role != "visitor"

    def _look(self) -> None:
        state = self._state
        before = state.in_run
        state.observed = self._host.remote_addresses()
        state.see(self._host.connected(), self._host.subscribers(state.topic) if state.topic else frozenset())
        state.detail = self._describe()
        if state.in_run - before:
            self._peers_changed.set()
            self._upkeep.found(first=not before)
        self.wake()

    async def _dial(self) -> None:
        while True:
            now = time.monotonic()
            due = [peer_id for peer_id in self._wanted() if self._dialling.wait_s(peer_id, now) <= 0]
            async with trio.open_nursery() as dials:
                for peer_id in due[:MAX_DIALS_AT_ONCE]:
                    dials.start_soon(self._dial_one, peer_id)
            await trio.sleep(min(OBSERVE_EVERY_S, self._state.settings.retry_s))

    def _wanted(self) -> dict[str, tuple[str, ...]]:
        # An expired record is better than nothing to a node that lost everyone.
        state = self._state
        now = state.clock()
        connected = self._host.connected()
        wanted = dict(state.bootstrap)
        if len(connected) < ENOUGH_PEERS:
            for peer_id, (record, _) in state.known.items():
                if record.expires_at > now or not connected:
                    with suppress(ConfigError):
                        wanted[peer_id] = (*wanted.get(peer_id, ()), *by_peer(record.multiaddrs).get(peer_id, ()))
        if len(state.in_run) < FEW_PEERS:
            for peer_id, addresses in reversed(state.remembered.items()):
                wanted[peer_id] = (*wanted.get(peer_id, ()), *addresses)
        unwanted = {*connected, *state.banned, state.identity.peer_id}
        dialable = {
            peer_id: tuple(dict.fromkeys(filter(_can_dial, addresses)))
            for peer_id, addresses in wanted.items()
            if peer_id not in unwanted
        }
        return {peer_id: addresses for peer_id, addresses in dialable.items() if addresses}

    async def _dial_one(self, peer_id: str) -> None:
        try:
            await self._host.connect(peer_id, self._wanted().get(peer_id, ()))
        except PeerUnreachable as error:
            logger.debug("dial failed: %s", error)
            self._state.counters.add("dial_failures")
            self._failures[peer_id] = str(error)
            self._dialling.failed(peer_id, time.monotonic())
        else:
            self._failures.pop(peer_id, None)
            self._dialling.succeeded(peer_id)
        self._someone_came.set()

    def _describe(self) -> str:
        state = self._state
        if state.in_run and state.manifest is not None:
            return f"connected to {len(state.in_run)} peers"
        missing = [peer_id for peer_id in state.bootstrap if peer_id in self._failures]
        if state.connected:
            return f"connected to {len(state.connected)} peers, none seen in the run yet"
        if not missing:
            return "waiting for peers" if not state.bootstrap else "dialling the bootstraps"
        wait_s = min(self._dialling.wait_s(peer_id, time.monotonic()) for peer_id in missing)
        reasons = "; ".join(self._failures[peer_id] for peer_id in missing)
        return f"no bootstrap reachable: {reasons}; next try in {wait_s:.0f} s"

    async def _join(self) -> None:
        state = self._state
        while state.manifest is None:
            now = time.monotonic()
            # Bootstraps first: they are the ones the user trusts to say which run this is.
            for peer_id in sorted(state.connected, key=lambda peer_id: peer_id not in state.bootstrap):
                if state.manifest is None and self._asking.wait_s(peer_id, now) <= 0:
                    await self._ask_for_run(peer_id)
            if state.manifest is None:
                self._peers_changed.clear()
                await self._peers_changed.happens(OBSERVE_EVERY_S)
        logger.info("in the run %s", state.manifest.run_id)
        self._run_known.set()

    async def _ask_for_run(self, peer_id: str) -> None:
        try:
            sealed = await self._host.call(peer_id, MANIFEST_PROTOCOL, b"", ASK_TIMEOUT_S)
            if sealed:
                self._state.adopt(sealed)
                return
        except PeerUnreachable as error:
            logger.debug("no manifest: %s", error)
        except RejectedGroup as refusal:
            self._state.counters.add("refused_manifests")
            logger.warning("refused the manifest that %s sent: %s", peer_id, refusal)
        self._asking.failed(peer_id, time.monotonic())

    async def _hear(self) -> None:
        await self._run_known.wait()
        topic = self._state.topic
        assert topic is not None
        if not self._state.profile.listed:
            return
        self._host.admit(topic, self._admissible)
        await self._host.subscribe(topic, self._state.receive)

    def _admissible(self, forwarder: str, author: str, record: bytes) -> bool:
        """Whether to pass a message on to others; what is in it is checked when it is opened."""
        if {forwarder, author} & self._state.banned:
            self._state.counters.add("banned_gossip")
            return False
        if len(record) > min(self._state.settings.max_record_bytes, INLINE_BYTES):
            self._state.counters.add("drop_oversized")
            return False
        return self._state.is_its_own(author, record)

    async def _tell(self) -> None:
        await self._run_known.wait()
        topic = self._state.topic
        assert topic is not None
        settled = False
        while True:
            if not self._state.in_run:
                settled = False
            elif not settled:
                await trio.sleep(SETTLE_S)
                settled = True
            record = self._state.outbox.take() if settled else None
            if record is None:
                await self._outgoing.happens(math.inf)
                self._outgoing.clear()
                continue
            await self._host.publish(topic, record)
            self._state.counters.add("published")
            await trio.sleep(max(1 / RECORDS_PER_S, len(record) / BYTES_PER_S))


def _can_dial(address: str) -> bool:
    """Others may be reachable in ways that py-libp2p is not set up for: QUIC, relays."""
    return "/tcp/" in address and CIRCUIT not in address
