"""Completeness behind gossip: members ask each other what they hold, and fetch by id what they have not seen.

    have   what do you hold that is at most this old?  ->  ids, sizes, ages
    give   these ids, please                           ->  id | length | record, for each one still held

Everything a peer answers is bounded: ids, records, bytes; the caller bounds the time. Free of asyncio and trio.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from swarm.errors import PeerUnreachable
from swarm.net.records.large import INLINE_BYTES, Fetch
from swarm.net.records.shelf import RECORD_ID_BYTES, Held, Shelf, record_id

HAVE_PROTOCOL = "/swarm/have/1"
GIVE_PROTOCOL = "/swarm/give/1"
MAX_LISTED = 4_096
MAX_HAVE_BYTES = 64 * MAX_LISTED
MAX_GIVEN = 256
MAX_GIVEN_BYTES = 8 * 2**20
MAX_BATCHES = 16
"""Of `MAX_GIVEN` records or `MAX_GIVEN_BYTES`: what one peer may send in one repair."""
ROUND_TIMEOUT_S = 30.0
GOSSIP_GRACE_S = 2.0
"""Records younger than this are still on their way by gossip."""
BACKFILL_ROUNDS = 3
"""So many different answers cover the whole backfill time; those after, only what is recent."""
WINDOW_ROUNDS = 6
"""Every recent record is asked for in this many rounds: the first peers asked may have missed it too."""
LENGTH_BYTES = 4


class HaveRequest(Struct, frozen=True, array_like=True):
    """Asks for what is held."""

    max_age_s: Annotated[float, Meta(ge=0, le=1e9)]


class GiveRequest(Struct, frozen=True, array_like=True):
    """Asks for records by id."""

    record_ids: Annotated[tuple[bytes, ...], Meta(max_length=MAX_GIVEN)]


def answer_have(shelf: Shelf, request: bytes) -> bytes:
    """What is held, the latest first. Raises `msgspec.MsgspecError`."""
    asked = msgspec.msgpack.decode(request, type=HaveRequest)
    return msgspec.msgpack.encode(shelf.listing(asked.max_age_s, GOSSIP_GRACE_S, MAX_LISTED))


def answer_give(shelf: Shelf, request: bytes) -> Iterator[bytes]:
    """The records asked for that are held, to the bounds of one answer. Raises `msgspec.MsgspecError`."""
    asked = msgspec.msgpack.decode(request, type=GiveRequest)
    return _give(shelf, asked.record_ids)


def _give(shelf: Shelf, names: Sequence[bytes]) -> Iterator[bytes]:
    room = MAX_GIVEN_BYTES
    for name in names:
        record = shelf.get(name)
        if record is None or len(record) > INLINE_BYTES:
            continue
        room -= len(record)
        if room < 0:
            return
        yield name + len(record).to_bytes(LENGTH_BYTES, "big") + record


class GiftReader:
    """Cuts an answer to `give` into records, however its chunks fall; only what was asked for is accepted, once."""

    def __init__(self, wanted: Sequence[bytes]) -> None:
        """Expect these ids."""
        self._wanted = set(wanted)
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Records that are complete now. Raises `PeerUnreachable` for anything that was not asked for."""
        header_bytes = RECORD_ID_BYTES + LENGTH_BYTES
        self._pending += chunk
        while len(self._pending) >= header_bytes:
            name = bytes(self._pending[:RECORD_ID_BYTES])
            length = int.from_bytes(self._pending[RECORD_ID_BYTES:header_bytes], "big")
            if name not in self._wanted or length > INLINE_BYTES:
                raise PeerUnreachable("it gave something that was not asked for")
            if len(self._pending) < header_bytes + length:
                return
            record = bytes(self._pending[header_bytes : header_bytes + length])
            if record_id(record) != name:
                raise PeerUnreachable("it gave a record under a false id")
            del self._pending[: header_bytes + length]
            self._wanted.remove(name)
            yield record

    def close(self) -> None:
        """The answer has ended. Raises `PeerUnreachable` when that was in the middle of a record."""
        if self._pending:
            raise PeerUnreachable("its answer ends within a record")


class Repair:
    """What one node does to miss nothing; the caller chooses the peer and bounds the time."""

    def __init__(
        self,
        shelf: Shelf,
        fetch: Fetch,
        deliver: Callable[[str, bytes, float], None],
        *,
        every_s: float,
        backfill_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`deliver(helper, record, age_s)` takes in what was missing; a round is to be run every `every_s`."""
        self._shelf = shelf
        self._fetch = fetch
        self._deliver = deliver
        self._every_s = every_s
        self._backfill_s = backfill_s
        self._clock = clock
        self._num_rounds = 0
        self._answered_at = clock()

    def window_s(self) -> float:
        """Up to what age the next round asks for records."""
        if self._num_rounds < BACKFILL_ROUNDS:
            return self._backfill_s
        since_answer_s = self._clock() - self._answered_at
        return min(self._backfill_s, since_answer_s + WINDOW_ROUNDS * self._every_s + GOSSIP_GRACE_S)

    async def round(self, peer_id: str) -> None:
        """Ask one peer what it holds and fetch what is missing. Raises `PeerUnreachable`."""
        began = self._clock()
        # The oldest first: should the inbox overflow, what it drops is what matters least.
        missing = [held for held in reversed(await self._ask(peer_id)) if self._is_missing(held)]
        for _ in range(MAX_BATCHES):
            batch, missing = _first_batch(missing)
            if not batch:
                break
            await self._get(peer_id, batch)
        self._num_rounds += 1
        self._answered_at = began

    def _is_missing(self, held: Held) -> bool:
        usable = held.num_bytes <= INLINE_BYTES and held.age_s <= self._backfill_s
        return usable and not self._shelf.knows(held.record_id)

    async def _ask(self, peer_id: str) -> list[Held]:
        request = msgspec.msgpack.encode(HaveRequest(self.window_s()))
        answer = bytearray()
        async with aclosing(self._fetch(peer_id, HAVE_PROTOCOL, request, MAX_HAVE_BYTES)) as chunks:
            async for chunk in chunks:
                answer += chunk
        try:
            return msgspec.msgpack.decode(answer, type=list[Held])[:MAX_LISTED]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise PeerUnreachable(f"its list of records cannot be read: {error}") from error

    async def _get(self, peer_id: str, batch: Sequence[Held]) -> None:
        ages = {held.record_id: held.age_s for held in batch}
        gifts = GiftReader(list(ages))
        request = msgspec.msgpack.encode(GiveRequest(tuple(ages)))
        # A liar that announces small records and sends large ones is cut off where honest ones would have ended.
        room = sum(held.num_bytes + RECORD_ID_BYTES + LENGTH_BYTES for held in batch)
        async with aclosing(self._fetch(peer_id, GIVE_PROTOCOL, request, room)) as chunks:
            async for chunk in chunks:
                for record in gifts.feed(chunk):
                    self._deliver(peer_id, record, ages[record_id(record)])
        gifts.close()


def _first_batch(missing: list[Held]) -> tuple[list[Held], list[Held]]:
    count, room = 0, MAX_GIVEN_BYTES
    for held in missing[:MAX_GIVEN]:
        room -= held.num_bytes
        if room < 0:
            break
        count += 1
    return missing[:count], missing[count:]
