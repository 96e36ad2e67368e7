"""Following: a node reads the feeds of some members and so hears of new records; see `records/feed`.

greet    every connected peer, once           -> who takes part in the run
follow   the feed of one member for a while   -> records; ids of larger ones
fetch    records that a feed named            -> records, from one of those that named them

Each is a loop, of which a session runs several. Independent of asyncio and trio: the session provides the runtime.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import AsyncGenerator, Iterable, Sequence, Set
from contextlib import aclosing
from itertools import islice
from typing import TypeVar

import msgspec

from swarm.errors import PeerUnreachable, Refusal
from swarm.lru import LruDict
from swarm.net.addresses.dial import Backoff
from swarm.net.bandwidth import MIN_RATE_BYTES_PER_S, TokenBucket
from swarm.net.membership.member import Member
from swarm.net.membership.upkeep import OpenStream
from swarm.net.records.envelope import joined
from swarm.net.records.feed import (
    FEED_PROTOCOL,
    FEED_RECORDS,
    FOLLOWED_AT_ONCE,
    HELLO_PROTOCOL,
    MAX_HELLO_BYTES,
    SIGN_OF_LIFE_S,
    FeedRequest,
    Named,
    decode_part,
    encode,
)
from swarm.net.records.repair import MAX_GIVEN, ask_records
from swarm.net.records.stores import record_id
from swarm.net.runtime import AsyncRuntime

logger = logging.getLogger(__name__)

GREETED_AT_ONCE, FETCHED_AT_ONCE = 4, 4
"""Loops, besides one for each feed."""
GREETING_TIMEOUT_S = 5.0
FOLLOWED_S = (60.0, 120.0)
"""Then another member is followed, if there are more: no peer decides for long whom a node hears."""
PROVEN_FIRST = FOLLOWED_AT_ONCE // 2
"""Proven authors among the followed members, if enough are connected: a crowd of new identities is never all that a
node hears."""
SILENCE_S = 3 * SIGN_OF_LIFE_S
MAX_FEED_BYTES = 2**40
"""Without a limit in practice: a feed is read at this node's own pace."""
ITEMS_PER_S, ITEMS_AT_ONCE = 400.0, 2_000.0
"""Pace at which one feed is read: twice that at which a node publishes."""
UNHELPFUL_S, MAX_UNHELPFUL_S = 5.0, 600.0
"""Back-off of a member whose feed failed."""
FETCH_EVERY_S = 0.05
"""At most one request for named records to a member in this time."""
FETCHED_BYTES = 2**18
"""A request ends with the record that exceeds this, so that none waits long for those before it."""
FETCH_TIMEOUT_S = 3.0
"""In addition to the time of the bytes at the least rate. Then another member that named the records is asked."""
LOOK_EVERY_S = 2.0
Peer = TypeVar("Peer")


class Following:
    """Greets connected peers, follows members, and fetches the records that their feeds name."""

    def __init__(self, member: Member, ask: OpenStream, runtime: AsyncRuntime) -> None:
        self._member = member
        self._ask = ask
        self._runtime = runtime
        self._peers_changed = runtime.signal()
        self._members_changed = runtime.signal()
        self._wanted = runtime.signal()
        self._receive = member.guard.guarded(member.records.receive_gossip)
        self._greeting: set[str] = set()
        self._followed: set[str] = set()
        self._unhelpful = Backoff(UNHELPFUL_S, MAX_UNHELPFUL_S)
        self._named: dict[str, LruDict[bytes, Named]] = {}
        """Records that each followed member has and this node lacks."""
        self._under_way: set[bytes] = set()
        """Ids of the records being fetched."""
        self._fetching: dict[str, float] = {}
        """When members may be asked again: infinity while they are being asked."""

    def peers_changed(self) -> None:
        """Other peers are connected, or take part."""
        self._peers_changed.set()
        self._members_changed.set()

    async def greet(self) -> None:
        """Greet connected peers, forever."""
        greetings, peers = self._member.greetings, self._member.peers
        while True:
            due = [peer_id for peer_id in greetings.due(peers.connected) if peer_id not in self._greeting]
            if not due:
                self._peers_changed.clear()
                await self._peers_changed.wait_for(LOOK_EVERY_S)
                continue
            # At random: a peer that does not answer must not delay the same others each time.
            await self._greet(random.choice(due))

    async def _greet(self, peer_id: str) -> None:
        greetings = self._member.greetings
        self._greeting.add(peer_id)
        try:
            async with self._runtime.timeout(GREETING_TIMEOUT_S):
                answer = await joined(self._fetch(peer_id, HELLO_PROTOCOL, greetings.own(), MAX_HELLO_BYTES))
            greetings.heard(peer_id, answer, knows_us=True)
        except (PeerUnreachable, TimeoutError, Refusal, msgspec.MsgspecError, UnicodeDecodeError) as error:
            greetings.failed(peer_id)
            logger.debug("greeting %s failed: %s", peer_id, error)
        finally:
            self._greeting.discard(peer_id)

    async def follow(self) -> None:
        """Follow one member after another, forever."""
        if not self._member.own.profile.listed:
            return
        while True:
            peer_id = self._choose()
            if peer_id is None:
                self._members_changed.clear()
                await self._members_changed.wait_for(LOOK_EVERY_S)
                continue
            self._followed.add(peer_id)
            try:
                await self._read_feed(peer_id)
                self._unhelpful.succeeded(peer_id)
            except PeerUnreachable as error:
                self._member.counters.add("feeds_failed")
                self._unhelpful.failed(peer_id, time.monotonic())
                logger.debug("the feed of %s failed: %s", peer_id, error)
            finally:
                self._followed.discard(peer_id)
                self._named.pop(peer_id, None)

    def _choose(self) -> str | None:
        """A random member to follow next; None if there is none."""
        now = time.monotonic()
        free = [
            peer_id
            for peer_id in self._member.peers.in_run - self._followed
            if self._unhelpful.wait_s(peer_id, now) <= 0
        ]
        free = candidates(free, self._followed, self._member.records.admission.proven or frozenset())
        return random.choice(free) if free else None

    async def _read_feed(self, peer_id: str) -> None:
        """Read a member's feed until it is another's turn. Raises `PeerUnreachable`."""
        manifest = self._member.run.manifest
        assert manifest is not None
        began = time.monotonic()
        until = began + random.uniform(*FOLLOWED_S)
        self._named[peer_id] = LruDict(FEED_RECORDS)
        read = TokenBucket(ITEMS_PER_S, ITEMS_AT_ONCE)
        request = encode(FeedRequest(manifest.run_id))
        async with aclosing(self._fetch(peer_id, FEED_PROTOCOL, request, MAX_FEED_BYTES)) as chunks:
            async for chunk in chunks:
                part = decode_part(chunk)
                for record in part.records:
                    self._receive(peer_id, record)
                self._note(peer_id, part.named)
                now = time.monotonic()
                read.spend(len(part.records) + len(part.named), now)
                await self._runtime.sleep(read.wait_s(now))
                if self._unhelpful.wait_s(peer_id, now) > 0:
                    raise PeerUnreachable("it did not give what it named")
                if peer_id not in self._member.peers.in_run or (now > until and self._choose() is not None):
                    return
        raise PeerUnreachable("it ended its feed")

    def _note(self, peer_id: str, named: Iterable[Named]) -> None:
        """Want the named records that this node lacks."""
        records, wanted = self._member.records, self._named[peer_id]
        for each in named:
            records.feed.known_to(peer_id, each.record_id)
            if not records.store.has_seen(each.record_id):
                wanted[each.record_id] = each
        if wanted:
            self._wanted.set()

    async def fetch(self) -> None:
        """Fetch named records, forever."""
        while True:
            self._wanted.clear()
            peer_id, batch = self._next_batch(time.monotonic())
            if not batch:
                await self._wanted.wait_for(self._pause_s(time.monotonic()))
                continue
            names = {each.record_id for each in batch}
            self._under_way |= names
            self._fetching[peer_id] = float("inf")
            try:
                await self._fetch_batch(peer_id, batch)
            finally:
                self._under_way -= names
                self._fetching[peer_id] = time.monotonic() + FETCH_EVERY_S

    def _next_batch(self, now: float) -> tuple[str, list[Named]]:
        """Records to ask one member for; none if there is nothing to ask."""
        self._fetching = {peer_id: until for peer_id, until in self._fetching.items() if until > now}
        for peer_id in random.sample(list(self._named), len(self._named)):
            if peer_id in self._fetching or self._unhelpful.wait_s(peer_id, now) > 0:
                continue
            batch, room = list[Named](), FETCHED_BYTES
            for each in islice(self._lacking(peer_id), MAX_GIVEN):
                batch.append(each)
                room -= each.num_bytes
                if room < 0:
                    break
            if batch:
                return peer_id, batch
        return "", []

    def _lacking(self, peer_id: str) -> Iterable[Named]:
        """Records that a member named and no peer is being asked for; forgets those that have arrived."""
        store, wanted = self._member.records.store, self._named[peer_id]
        for name in list(wanted):
            if store.has_seen(name):
                del wanted[name]
            elif name not in self._under_way:
                yield wanted[name]

    def _pause_s(self, now: float) -> float:
        """Time until a member may be asked again for which something waits."""
        waiting = [until - now for peer_id, until in self._fetching.items() if self._named.get(peer_id)]
        return max(0.0, min([LOOK_EVERY_S, *waiting]))

    async def _fetch_batch(self, peer_id: str, batch: Sequence[Named]) -> None:
        num_bytes = sum(each.num_bytes for each in batch)
        given = 0
        try:
            async with (
                self._runtime.timeout(FETCH_TIMEOUT_S + num_bytes / MIN_RATE_BYTES_PER_S),
                aclosing(ask_records(self._fetch, peer_id, batch)) as records,
            ):
                async for record in records:
                    given += 1
                    self._receive(peer_id, record)
                    self._spare_those_that_named(record_id(record))
            if 2 * given < len(batch):
                raise PeerUnreachable(f"it gave {given} of {len(batch)} records that it named")
        except (PeerUnreachable, TimeoutError) as error:
            self._member.counters.add("feeds_unkept")
            self._unhelpful.failed(peer_id, time.monotonic())
            logger.debug("fetching from the feed of %s failed: %s", peer_id, error)
        finally:
            if (wanted := self._named.get(peer_id)) is not None:
                for each in batch:
                    wanted.pop(each.record_id, None)

    def _spare_those_that_named(self, name: bytes) -> None:
        """Do not name a record to members that have named it."""
        for peer_id, wanted in self._named.items():
            if name in wanted:
                self._member.records.feed.known_to(peer_id, name)

    async def _fetch(self, peer_id: str, protocol: str, payload: bytes, max_bytes: int) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._ask(peer_id, protocol, payload, SILENCE_S, max_bytes)) as chunks:
            async for chunk in chunks:
                self._member.records.heard()
                yield chunk


def candidates(free: list[Peer], followed: Set[Peer], proven: Set[Peer]) -> list[Peer]:
    """The free members to choose from at random: proven ones until enough of these are followed. Pure."""
    if len(followed & proven) < PROVEN_FIRST:
        return [peer for peer in free if peer in proven] or free
    return free
