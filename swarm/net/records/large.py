"""Records fetched by id: large ones, which are announced with a digest per chunk, and chosen ones on offer.

Any holder can give them. An author that has sent a record often enough refers to earlier askers instead:

    asker    id, its own signed record ─▶ author    the record, or the signed records of a few earlier askers
    asker    id ─▶ one of these after another       the record, checked by its digest
             id ─▶ author                           the record, if none of them gave it

The traffic of an author thus does not grow with the number of askers, and each of them sends about one record on. A
referral is a hint: a named member has signed that it is one, is asked once, and cannot refer any further.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from contextlib import aclosing
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta, Struct, field

from swarm.errors import PeerUnreachable
from swarm.lru import LruDict
from swarm.net.records.envelope import MAX_CHUNK_BYTES
from swarm.net.records.identity import Identity
from swarm.net.records.stores import RecordStore, record_id
from swarm.net.records.wire import MAX_PEER_RECORD_BYTES, Announcement, seal_announcement
from swarm.types import Count, OfferedGroup, complete

MARK = b"\xc1"
"""Begins a referral: MessagePack has no value that begins so, and hence no record does."""
SENT_ITSELF = 8
"""Times that an author sends a record before it refers to others."""
MAX_NAMED = 3
"""Askers named in one referral."""
MAX_NAMINGS = 3
"""Times that one asker is named. With three names per referral, one asker leaves the line for each new one."""
SETTLED_S = 2.0
"""An asker from this long ago has the record, as far as the author can know."""
MAX_LINE = 256
"""Askers of one record that wait to be named: two seconds of the largest swarm that the common rate serves."""
MAX_RECORDS = 32
"""Records whose askers are remembered, those asked for last."""
MAX_REFERRAL_BYTES = 16 + MAX_NAMED * (MAX_PEER_RECORD_BYTES + 8)

Named = Annotated[
    tuple[Annotated[bytes, Meta(max_length=MAX_PEER_RECORD_BYTES)], ...], Meta(min_length=1, max_length=MAX_NAMED)
]


LARGE_PROTOCOL = "/swarm/large/1"
INLINE_BYTES = 1_000_000
"""Largest record sent by gossip itself. Gossip's own limit is 1 MiB for the message with its framing."""
MAX_WAITING = 64
MAX_WAITING_PER_PEER = 4
MAX_PER_ACCOUNT = 16
"""All newcomers behind one connection share one account."""
MAX_OTHERS_ASKED = 3
"""Holders of a record on offer that are asked besides its author: few members have it."""
MAX_PARTIAL_BYTES = 64 * 2**20
"""Bytes held by all unfinished downloads that wait for a retry."""


class _Asker(Struct):
    peer_id: str
    sealed: bytes
    asked_at: float
    namings: int = 0


class _Asked(Struct):
    """The askers of one record."""

    num_sent: int = 0
    line: deque[_Asker] = field(default_factory=deque)
    """The first asker is named first."""


class Referrals:
    """Askers of this node's records, and which of them to name. For the network thread."""

    def __init__(self, is_record_of: Callable[[str, bytes], bool], clock: Callable[[], float] = time.monotonic) -> None:
        """`is_record_of(peer_id, sealed)`: whether these bytes are this member's signed record. May raise `Refusal`."""
        self._is_record_of = is_record_of
        self._clock = clock
        self._asked = LruDict[bytes, _Asked](MAX_RECORDS)

    def instead(self, record_id: bytes, num_bytes: int, asker: str, sealed: bytes) -> bytes | None:
        """The referral that `asker` gets instead of a record of this size; None if it gets the record.

        `sealed`: the asker's own record, by which it will be named. Raises `Refusal` if it is invalid or another's.
        """
        asked = self._asked.setdefault(record_id, _Asked())
        self._enter(asked, asker, sealed)
        named = self._next(asked, asker) if asked.num_sent >= SENT_ITSELF else ()
        referral = MARK + msgspec.msgpack.encode(tuple(each.sealed for each in named)) if named else None
        if referral is not None and len(referral) >= num_bytes:
            referral = None
        self._count(asked, named if referral else ())
        return referral

    def _next(self, asked: _Asked, asker: str) -> tuple[_Asker, ...]:
        since = self._clock() - SETTLED_S
        settled = (each for each in asked.line if each.asked_at <= since and each.peer_id != asker)
        return tuple(each for each, _ in zip(settled, range(MAX_NAMED), strict=False))

    def _count(self, asked: _Asked, named: tuple[_Asker, ...]) -> None:
        if not named:
            asked.num_sent += 1
        for each in named:
            each.namings += 1
            if each.namings == MAX_NAMINGS:
                asked.line.remove(each)

    def _enter(self, asked: _Asked, asker: str, sealed: bytes) -> None:
        waits = any(each.peer_id == asker for each in asked.line)
        # An asker whose record this node cannot read, for example for its clock, is not named, that is all.
        if not waits and len(asked.line) < MAX_LINE and self._is_record_of(asker, sealed):
            asked.line.append(_Asker(asker, sealed, self._clock()))


def read_referral(referral: bytes | bytearray) -> tuple[bytes, ...]:
    """The signed records of the askers that a holder names. Raises `PeerUnreachable`."""
    if len(referral) > MAX_REFERRAL_BYTES:
        raise PeerUnreachable(f"a referral must have at most {MAX_REFERRAL_BYTES} bytes, got {len(referral)}")
    try:
        return msgspec.msgpack.decode(memoryview(referral)[len(MARK) :], type=Named)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PeerUnreachable(f"its referral cannot be read: {error}") from error


class Fetch(Protocol):
    """Opens a stream on a transport: the chunks of a peer's answer. Raises `PeerUnreachable`."""

    def __call__(self, peer_id: str, protocol: str, payload: bytes, max_bytes: int) -> AsyncGenerator[bytes, None]:
        """Chunks of a peer's answer as they arrive."""


class LargeRequest(Struct, frozen=True, array_like=True):
    """Requests a record's bytes from an offset on."""

    record_id: bytes
    offset: Count
    asker: Annotated[bytes, Meta(max_length=MAX_PEER_RECORD_BYTES)] = b""
    """The asker's own signed record if it accepts referrals. Nodes that know no referrals ignore it."""


def announce(identity: Identity, run_id: str, record: bytes) -> bytes:
    """A signed announcement of a record."""
    chunks = tuple(record_id(piece) for piece in _pieces(record, 0))
    return seal_announcement(identity, Announcement(run_id, identity.peer_id, record_id(record), len(record), chunks))


def answer_large(store: RecordStore, referrals: Referrals, remote: str, request: bytes) -> Iterator[bytes]:
    """The bytes of a held record from the requested offset, or a referral to others.

    Raises `LookupError`, `msgspec.MsgspecError`, or `Refusal` for an asker's record that is invalid or another's.
    """
    wanted = msgspec.msgpack.decode(request, type=LargeRequest)
    record = store.get(wanted.record_id)
    if record is None or wanted.offset > len(record):
        raise LookupError("the record is not held here")
    if wanted.asker and not wanted.offset:
        referral = referrals.instead(wanted.record_id, len(record), remote, wanted.asker)
        if referral is not None:
            return iter([referral])
    return _pieces(record, wanted.offset)


class Download:
    """A large record in progress. Every chunk is verified on arrival; holders are tried one after another."""

    def __init__(
        self,
        announcement: Announcement,
        account: str = "",
        offered: OfferedGroup | None = None,
        patience_s: float = 0.0,
    ) -> None:
        """Empty; `account` is what it is charged to. `offered`: the group on offer that this fetches, if any.

        Its author has `patience_s` from the first request on.
        """
        self.announcement = announcement
        self.account = account
        self.offered = offered
        self.patience_s = patience_s
        self.asked = False
        """Whether a request was sent to the author of the group on offer."""
        self.referred = False
        """Whether a holder has named others: from then on, holders can only give the record."""
        self._content = bytearray()
        self._verified = 0

    @property
    def done(self) -> bool:
        """Whether all chunks are verified."""
        return len(self._content) == self.announcement.num_bytes == self._verified

    @property
    def num_held(self) -> int:
        """Bytes held in memory."""
        return len(self._content)

    def clear(self) -> None:
        """Discard the bytes received so far."""
        self._content.clear()
        self._verified = 0

    def feed(self, piece: bytes) -> None:
        """Append bytes. Raises `PeerUnreachable` if they do not match the announcement."""
        announced = self.announcement
        self._content += piece
        if len(self._content) > announced.num_bytes:
            raise PeerUnreachable(f"it sent more than the {announced.num_bytes} bytes that were announced")
        while self._verified < len(self._content):
            end = min(self._verified + MAX_CHUNK_BYTES, announced.num_bytes)
            if end > len(self._content):
                return
            expected = announced.chunk_ids[self._verified // MAX_CHUNK_BYTES]
            if record_id(bytes(self._content[self._verified : end])) != expected:
                raise PeerUnreachable(f"the chunk at byte {self._verified} does not match the announcement")
            self._verified = end

    async def fetch_from(self, fetch: Fetch, peer_id: str, asker: bytes = b"") -> tuple[bytes, ...]:
        """Fetch the rest from one holder; verified chunks survive a failure. Raises `PeerUnreachable`.

        A holder that gets the signed record of the `asker` may name others instead: returns their signed records.
        """
        del self._content[self._verified :]
        wanted = msgspec.msgpack.encode(LargeRequest(self.announcement.record_id, self._verified, asker))
        room = self.announcement.num_bytes - self._verified
        referral = bytearray()
        async with aclosing(
            fetch(peer_id, LARGE_PROTOCOL, wanted, max(room, MAX_REFERRAL_BYTES) if asker else room)
        ) as chunks:
            async for chunk in chunks:
                if referral or (asker and not self._content and chunk.startswith(MARK)):
                    referral += chunk
                else:
                    self.feed(chunk)
        if referral:
            self.referred = True
            return read_referral(referral)
        if not self.done:
            raise PeerUnreachable(f"it sent only {self._verified} of {self.announcement.num_bytes} bytes")
        return ()

    def record(self) -> bytes:
        """The whole record. Raises `PeerUnreachable` if it does not match the announced id."""
        record = bytes(self._content)
        if record_id(record) != self.announcement.record_id:
            raise PeerUnreachable("the announced chunks do not make up the announced record")
        return record


def pull(run_id: str, offered: OfferedGroup, account: str, patience_s: float) -> Download:
    """The download of a record on offer: one chunk, whose digest is the record's id."""
    offer = offered.offer
    announcement = Announcement(run_id, offered.peer_id, offer.record_id, offer.num_bytes, (offer.record_id,))
    return Download(announcement, account, offered, patience_s)


class DownloadQueue:
    """Queue of downloads. Round-robin over accounts.

    Those that others announce (`add`) are bounded in total, per announcer and per account; those that this node chose
    (`put_back`) by its choice.
    """

    def __init__(self) -> None:
        self._downloads: dict[str, deque[tuple[float, Download]]] = {}
        """Waiting downloads by account, in round-robin order."""
        self._announced_by: Counter[str] = Counter()
        self._num_by_account: Counter[str] = Counter()

    def add(self, announcement: Announcement, give_up_at: float, account: str) -> bool:
        """Queue a download for `account`; False if a limit is reached.

        If the queue is full, an account with fewer downloads displaces the newest one of the account with the most.
        """
        if (
            self._announced_by[announcement.peer_id] >= MAX_WAITING_PER_PEER
            or self._num_by_account[account] >= MAX_PER_ACCOUNT
        ):
            return False
        if len(self) >= MAX_WAITING and not self._displace(account):
            return False
        self._announced_by[announcement.peer_id] += 1
        self._num_by_account[account] += 1
        self._downloads.setdefault(account, deque()).append((give_up_at, Download(announcement, account)))
        return True

    def take(
        self, is_ready: Callable[[float, Download], bool] = lambda give_up_at, download: True
    ) -> tuple[float, Download] | None:
        """The oldest download that is ready, of the next account with one; it counts towards the limits until
        `forget`.
        """
        for account, waiting in self._downloads.items():
            taken = next((each for each in waiting if is_ready(*each)), None)
            if taken is not None:
                del self._downloads[account]
                waiting.remove(taken)
                if waiting:
                    self._downloads[account] = waiting
                return taken
        return None

    def put_back(self, give_up_at: float, download: Download) -> None:
        """Queue a chosen download, or one for another attempt.

        It restarts from zero if waiting downloads hold too many bytes.
        """
        held = sum(other.num_held for waiting in self._downloads.values() for _, other in waiting)
        if download.num_held + held > MAX_PARTIAL_BYTES:
            download.clear()
        self._downloads.setdefault(download.account, deque()).append((give_up_at, download))

    def forget(self, download: Download) -> None:
        """Remove a finished or abandoned download from the limits."""
        if download.offered is not None:
            return
        for counts, key in (
            (self._announced_by, download.announcement.peer_id),
            (self._num_by_account, download.account),
        ):
            counts[key] -= 1
            if not counts[key]:
                del counts[key]

    def __len__(self) -> int:
        """Number of queued downloads."""
        return sum(map(len, self._downloads.values()))

    def _displace(self, account: str) -> bool:
        most = max(self._downloads, key=lambda other: len(self._downloads[other]))
        if len(self._downloads[most]) <= self._num_by_account[account] + 1:
            return False
        _, dropped = self._downloads[most].pop()
        self.forget(dropped)
        return True


def holders(
    download: Download, members: Collection[str], shuffle: Callable[[list[str]], None] = random.shuffle
) -> list[str]:
    """Peers to ask, in order: the announcer if it is connected, then the other members in random order.

    For a record on offer: the author, connected or not, then a few others.
    """
    author = download.announcement.peer_id
    others = [peer_id for peer_id in members if peer_id != author]
    shuffle(others)
    if download.offered is not None:
        return [author, *others[:MAX_OTHERS_ASKED]]
    return [author, *others] if author in members else others


def _pieces(record: bytes, offset: int) -> Iterator[bytes]:
    for start in range(offset, len(record), MAX_CHUNK_BYTES):
        yield record[start : start + MAX_CHUNK_BYTES]


complete(globals())
