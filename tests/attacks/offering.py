"""Strangers that abuse offers: promises of nothing, others' groups under an own name, and an author's streams."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from swarm.errors import PeerUnreachable, Refusal, TransportError
from swarm.net.records.envelope import read_record
from swarm.net.records.large import INLINE_BYTES, LARGE_PROTOCOL, LargeRequest
from swarm.net.records.offers import OFFERS, describe, open_offers, seal_offers
from swarm.net.records.wire import Limits, check_seal, open_group, seal
from swarm.types import Offer, VerifiedGroup

from .stranger import Stranger

OFFERS_AT_ONCE = 32
EVERY_S = 2.0
ANSWER_S = 5.0
MAX_ANSWER_BYTES = 2**20


class Promising:
    """Offers groups that do not exist, and answers requests with silence."""

    def __init__(self, stranger: Stranger, run_id: str) -> None:
        """From now on, until the stranger leaves."""
        self._stranger = stranger
        self._run_id = run_id
        self.num_asked = 0
        stranger.run(stranger.daemon.answer(LARGE_PROTOCOL, self._silence))
        stranger.begin(self._promise())

    def _silence(self, remote: str, request: bytes) -> Iterator[bytes | None]:
        self.num_asked += 1
        while True:
            yield None

    async def _promise(self) -> None:
        await self._stranger.feed.take_part(self._run_id)
        while True:
            offers = [
                Offer(os.urandom(16), os.urandom(16), 3_000, "gcd", 8, 0.5, 0.5, os.urandom(8), 120)
                for _ in range(OFFERS_AT_ONCE)
            ]
            record = seal_offers(self._stranger.identity, self._run_id, offers, OFFERS_AT_ONCE / EVERY_S)
            self._stranger.feed.publish(record)
            await asyncio.sleep(EVERY_S)


class Thief:
    """Fetches what others offer as soon as it hears of it, and publishes it as its own: whole, or on offer as well."""

    def __init__(self, stranger: Stranger, run_id: str, *, offering: bool = False, backdated: bool = True) -> None:
        """From now on. Its copies say that they were made when the originals were, or else now."""
        self._stranger = stranger
        self._run_id = run_id
        self._offering = offering
        self._backdated = backdated
        self._held: dict[bytes, bytes] = {}
        self._sequence = int(time.time() * 1_000)
        self.num_stolen = 0
        stranger.run(stranger.daemon.answer(LARGE_PROTOCOL, self._give))
        stranger.run(stranger.feed.take_part(run_id))
        for peer_id in stranger.connected():
            stranger.begin(stranger.feed.read(peer_id, self._hear))

    def _give(self, remote: str, request: bytes) -> Iterator[bytes]:
        yield self._held[msgspec.msgpack.decode(request, type=LargeRequest).record_id]

    def _hear(self, sender: str, record: bytes) -> None:
        with suppress(Refusal):
            sealed = read_record(record, INLINE_BYTES)
            if sealed.body.kind == OFFERS and sealed.body.peer_id != self._stranger.peer_id:
                told = open_offers(check_seal(sealed, self._run_id), self._run_id)
                asyncio.get_running_loop().create_task(self._steal(told.peer_id, told.offers))

    async def _steal(self, author: str, offers: tuple[Offer, ...]) -> None:
        for offer in offers:
            with suppress(PeerUnreachable, TransportError, Refusal, TimeoutError):
                wanted = msgspec.msgpack.encode(LargeRequest(offer.record_id, 0))
                record = await self._stranger.daemon.call(author, LARGE_PROTOCOL, wanted, ANSWER_S)
                await self._publish(self._open(record))

    def _open(self, record: bytes) -> VerifiedGroup:
        return open_group(check_seal(read_record(record, INLINE_BYTES), self._run_id), Limits())

    async def _publish(self, original: VerifiedGroup) -> None:
        self._sequence += 1
        me = self._stranger.identity
        made_at = original.group.created_at if self._backdated else time.time()
        copy = replace(original.group, peer_id=me.peer_id, sequence=self._sequence, created_at=made_at)
        record = seal(me, self._run_id, "group", copy)
        if self._offering:
            sealed = self._open(record)
            offer = describe(sealed, 120.0)
            assert offer is not None
            self._held[offer.record_id] = record
            record = seal_offers(me, self._run_id, [offer], 1.0)
        self._stranger.feed.publish(record)
        self.num_stolen += 1


class Siege:
    """Holds as many idle streams for records at an author as it gets, under several identities."""

    def __init__(self, strangers: list[Stranger], author: str, streams_of_each: int = 60) -> None:
        """From now on, until `end`."""
        self._strangers = strangers
        self._author = author
        self.num_opened = 0
        self._tasks = [(each, each.run(self._begin(each, streams_of_each))) for each in strangers]

    async def _begin(self, stranger: Stranger, count: int) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._hold(stranger, number)) for number in range(count)]

    async def _hold(self, stranger: Stranger, number: int) -> None:
        while True:
            with suppress(TransportError, OSError):
                reader, writer = await stranger.daemon.open_stream(self._author, LARGE_PROTOCOL)
                self.num_opened += 1
                writer.write(b"\0\0" * (number % 2))  # nothing, or half a header
                await reader.read(1)
                writer.close()
            await asyncio.sleep(0.2)

    def end(self) -> None:
        """Let go."""

        async def cancel(tasks: list[asyncio.Task[None]]) -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        for stranger, tasks in self._tasks:
            stranger.run(cancel(tasks))
