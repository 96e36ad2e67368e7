"""Referrals: an author that has sent a record often enough names earlier askers, instead of sending it again.

    asker    id, its own signed record ─▶ author    the record, or the signed records of a few earlier askers
    asker    id ─▶ one of these after another       the record, checked by its digest
             id ─▶ author                           the record, if none of them gave it

What an author sends thus does not grow with the number of those who want it, and each of them sends about one record
on. A referral is a hint. Who is named has signed that it is a member, is asked once, and cannot refer any further.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from swarm.errors import PeerUnreachable
from swarm.lru import LruDict
from swarm.net.records.wire import MAX_PEER_RECORD_BYTES

MARK = b"\xc1"
"""Begins a referral: MessagePack has no value that begins so, and hence no record does."""
SENT_ITSELF = 8
"""Times that an author sends a record before it names others."""
MAX_NAMED = 3
"""In one referral."""
MAX_NAMINGS = 3
"""Of one asker. With three names in a referral, one asker leaves the line for each that enters it."""
SETTLED_S = 2.0
"""Who asked this long ago has the record, as far as the author can know."""
MAX_LINE = 256
"""Askers of one record that wait to be named: two seconds of the largest swarm that the common rate serves."""
MAX_RECORDS = 32
"""Whose askers are remembered; of more, those asked for last."""
MAX_REFERRAL_BYTES = 16 + MAX_NAMED * (MAX_PEER_RECORD_BYTES + 8)

Named = Annotated[
    tuple[Annotated[bytes, Meta(max_length=MAX_PEER_RECORD_BYTES)], ...], Meta(min_length=1, max_length=MAX_NAMED)
]


class _Asker(Struct):
    peer_id: str
    sealed: bytes
    asked_at: float
    namings: int = 0


class _Asked(Struct):
    """What an author remembers of one record."""

    num_sent: int = 0
    line: deque[_Asker] = field(default_factory=deque)
    """Who asked first is named first."""


class Referrals:
    """Who asked for which record here, and whom to name. For the network thread."""

    def __init__(self, is_record_of: Callable[[str, bytes], bool], clock: Callable[[], float] = time.monotonic) -> None:
        """`is_record_of(peer_id, sealed)`: whether these bytes are this member's signed record. May raise `Refusal`."""
        self._is_record_of = is_record_of
        self._clock = clock
        self._asked = LruDict[bytes, _Asked](MAX_RECORDS)

    def instead(self, record_id: bytes, num_bytes: int, asker: str, sealed: bytes) -> bytes | None:
        """The referral that `asker` gets instead of a record of this size; None if it gets the record.

        `sealed`: the asker's own record, by which it will be named. Raises `Refusal` if it is nobody's or another's.
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
        # An own record that this node cannot read, as by another clock, costs the asker nothing but being named.
        if not waits and len(asked.line) < MAX_LINE and self._is_record_of(asker, sealed):
            asked.line.append(_Asker(asker, sealed, self._clock()))


def read_referral(referral: bytes | bytearray) -> tuple[bytes, ...]:
    """The signed records of those whom a holder names. Raises `PeerUnreachable`."""
    if len(referral) > MAX_REFERRAL_BYTES:
        raise PeerUnreachable(f"a referral must have at most {MAX_REFERRAL_BYTES} bytes, got {len(referral)}")
    try:
        return msgspec.msgpack.decode(memoryview(referral)[len(MARK) :], type=Named)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PeerUnreachable(f"its referral cannot be read: {error}") from error
