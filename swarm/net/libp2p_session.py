"""The life of a node on one py-libp2p host: a handful of loops that run until one fails or the node is closed.

dial      bootstraps and known peers not connected  -> connections          (backoff for each, for ever)
observe   the host's connections                    -> state, wakes the rest (every second)
join      manifest from a connected peer            -> the run              (until there is one)
hear      gossip on the run's topic                 -> inbox
tell      outbox                                    -> gossip               (paced; waits while nobody hears)
discover  members of the run, asked whom they know  -> records of others    (every `announce_every_s`)

Importing this imports libp2p; see `libp2p_host`.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

import trio

from swarm.errors import ConfigError, PeerUnreachable, RejectedGroup
from swarm.net.dial import Backoff, by_peer
from swarm.net.libp2p_host import Host, interfaces
from swarm.net.manifest import MANIFEST_PROTOCOL
from swarm.net.peer_exchange import MAX_LIST_BYTES, PEERS_PROTOCOL, PeerExchange
from swarm.net.state import NodeState

logger = logging.getLogger(__name__)

OBSERVE_EVERY_S = 1.0
ASK_TIMEOUT_S = 5.0
MAX_DIALS_AT_ONCE = 8
ENOUGH_PEERS = 32
"""Gossip needs no full mesh: peers heard of are dialled up to this many connections."""
PEERS_ASKED_AT_ONCE = 4
RECORDS_PER_S = 100.0
BYTES_PER_S = 6e6
"""A peer's queue holds 32 messages, and what does not fit is lost: one busy interpreter empties it at this rate."""
SETTLE_S = 1.0
"""A message published within a heartbeat of the first peer's arrival can miss it."""


class Signal:
    """Something to wake one waiting loop with, again and again."""

    def __init__(self) -> None:
        """Not given yet."""
        self._event = trio.Event()

    def give(self) -> None:
        """Wake the loop, or keep it from waiting when it next would."""
        self._event.set()

    async def wait(self, timeout_s: float = math.inf) -> bool:
        """Whether the signal came in time; takes it."""
        with trio.move_on_after(timeout_s):
            await self._event.wait()
        given: bool = self._event.is_set()
        if given:
            self._event = trio.Event()
        return given


class Session:
    """One host's worth of a node."""

    def __init__(self, state: NodeState, host: Host, others: PeerExchange, banned: frozenset[str]) -> None:
        """Run `state` on a host that has just started, and keep the peers `banned` out."""
        self._state = state
        self._host = host
        self._others = others
        self._banned = banned
        self._dialling = Backoff(state.settings.retry_s)
        self._asking = Backoff(state.settings.retry_s, longest_s=state.settings.retry_s)
        self._failures: dict[str, str] = {}
        self._run_known = trio.Event()
        self._peers_changed = Signal()
        self._someone_came = Signal()
        self._outgoing = Signal()
        self._serving: set[str] = set()
        self._loops: trio.Nursery | None = None

    async def run(self, started: Callable[[], None]) -> None:
        """Everything above, until cancelled; calls `started` when others can reach this node."""
        self._host.answer(MANIFEST_PROTOCOL, lambda remote, request: self._state.sealed or b"")
        self._host.answer(PEERS_PROTOCOL, lambda remote, request: self._others.answer())
        self.serve()
        self._note_addresses()
        started()
        async with trio.open_nursery() as self._loops:
            for loop in (self._dial, self._observe, self._join, self._hear, self._tell, self._discover):
                self._loops.start_soon(loop)

    def serve(self) -> None:
        """Register handlers added since the last call; on the network thread, as everything here."""
        for protocol in self._state.handlers.keys() - self._serving:
            self._serving.add(protocol)
            self._host.answer(protocol, partial(self._state.handle, protocol))

    def wake(self) -> None:
        """Look again at the outbox and the run."""
        self._outgoing.give()
        if self._state.manifest is not None:
            self._run_known.set()

    def ban(self, peer_ids: frozenset[str]) -> None:
        """Keep these peers out from now on, and no others."""
        self._banned = peer_ids
        self._someone_came.give()

    def ask(self, answer: Future[bytes], peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> None:
        """Ask one peer; `answer` gets the reply or `PeerUnreachable`."""
        if self._loops is None:
            answer.set_exception(PeerUnreachable(f"{peer_id} cannot be asked: the network is starting"))
        else:
            self._loops.start_soon(self._ask, answer, peer_id, protocol, payload, timeout_s)

    async def _ask(self, answer: Future[bytes], peer_id: str, protocol: str, payload: bytes, timeout_s: float) -> None:
        failure = PeerUnreachable(f"{peer_id} did not answer {protocol}: the network was closed")
        reply: bytes | None = None
        try:
            reply = await self._host.call(peer_id, protocol, payload, timeout_s)
        except PeerUnreachable as error:
            failure = error
        finally:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(failure) if reply is None else answer.set_result(reply)

    def _note_addresses(self) -> None:
        announced = self._state.settings.announce
        listening = [address for wildcard in self._host.listening() for address in interfaces(wildcard)]
        self._state.addresses = announced or tuple(listening)

    async def _observe(self) -> None:
        while True:
            for peer_id in self._host.connected() & self._banned:
                self._state.counters.add("banned_connections")
                await self._host.drop(peer_id)
            self._look()
            await self._someone_came.wait(OBSERVE_EVERY_S)

    def _look(self) -> None:
        state = self._state
        before = state.in_run
        state.see(self._host.connected(), self._host.subscribers(state.topic) if state.topic else frozenset())
        state.detail = self._describe()
        if state.in_run - before:
            self._peers_changed.give()
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
            for peer_id, record in state.known.items():
                if record.expires_at > now or not connected:
                    with suppress(ConfigError):
                        wanted[peer_id] = (*wanted.get(peer_id, ()), *by_peer(record.multiaddrs).get(peer_id, ()))
        return {
            peer_id: tuple(dict.fromkeys(addresses))
            for peer_id, addresses in wanted.items()
            if addresses and peer_id not in connected and peer_id not in self._banned
        }

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
        self._someone_came.give()

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
                await self._peers_changed.wait(OBSERVE_EVERY_S)
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
        self._host.admit(topic, self._admissible)
        await self._host.subscribe(topic, self._state.receive)

    def _admissible(self, forwarder: str, author: str, record: bytes) -> bool:
        """Whether to pass a message on to others; what is in it is checked when it is opened."""
        if forwarder in self._banned or author in self._banned:
            self._state.counters.add("banned_gossip")
            return False
        if len(record) > self._state.settings.max_record_bytes:
            self._state.counters.add("drop_oversized")
            return False
        return True

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
                await self._outgoing.wait()
                continue
            await self._host.publish(topic, record)
            self._state.counters.add("published")
            await trio.sleep(max(1 / RECORDS_PER_S, len(record) / BYTES_PER_S))

    async def _discover(self) -> None:
        await self._run_known.wait()
        pause_s = OBSERVE_EVERY_S
        while True:
            members = sorted(self._state.in_run)
            async with trio.open_nursery() as questions:
                for peer_id in random.sample(members, min(len(members), PEERS_ASKED_AT_ONCE)):
                    questions.start_soon(self._ask_for_peers, peer_id)
            # Someone new may know others; else what is known changes slowly: look again soon at first.
            if await self._peers_changed.wait(pause_s):
                pause_s = OBSERVE_EVERY_S
                await trio.sleep(OBSERVE_EVERY_S)
            else:
                pause_s = min(2 * pause_s, self._state.settings.announce_every_s)

    async def _ask_for_peers(self, peer_id: str) -> None:
        try:
            self._others.learn(await self._host.call(peer_id, PEERS_PROTOCOL, b"", ASK_TIMEOUT_S, MAX_LIST_BYTES))
        except PeerUnreachable as error:
            self._state.counters.add("peer_lists_missed")
            logger.debug("no list of peers: %s", error)
        except RejectedGroup as refusal:
            self._state.counters.add("refused_peer_lists")
            logger.debug("refused the list of peers that %s sent: %s", peer_id, refusal)
