"""Peer exchange: any member of the run passes on signed records of peers' addresses."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Annotated

import msgspec
from msgspec import Meta

from swarm.errors import PeerUnreachable, Refusal
from swarm.net.records.large import Fetch
from swarm.net.records.wire import MAX_PEER_RECORD_BYTES, open_peer_record
from swarm.types import PeerRecord

PEERS_PROTOCOL = "/swarm/peers/1"
MAX_PEERS = 64
MAX_ANSWER_BYTES = MAX_PEERS * (MAX_PEER_RECORD_BYTES + 8)

SealedRecords = Annotated[list[Annotated[bytes, Meta(max_length=MAX_PEER_RECORD_BYTES)]], Meta(max_length=MAX_PEERS)]


def answer_peers(sealed_records: Sequence[bytes]) -> bytes:
    """The first records, up to the limit of an answer."""
    return msgspec.msgpack.encode(sealed_records[:MAX_PEERS])


async def ask_peers(fetch: Fetch, peer_id: str, run_id: str, now: float) -> list[tuple[PeerRecord, bytes]]:
    """Records of peers that a peer knows, decoded and as signed; expired or forged ones are dropped.

    Raises `PeerUnreachable`.
    """
    answer = bytearray()
    async with aclosing(fetch(peer_id, PEERS_PROTOCOL, b"", MAX_ANSWER_BYTES)) as chunks:
        async for chunk in chunks:
            answer += chunk
    try:
        sealed_records = msgspec.msgpack.decode(answer, type=SealedRecords)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PeerUnreachable(f"its list of peers cannot be read: {error}") from error
    found = []
    for sealed in sealed_records:
        try:
            found.append((open_peer_record(sealed, run_id, now=now), sealed))
        except Refusal:
            continue
    return found
