"""The run's directory of peers: one signed, short-lived record a peer in hivemind's DHT.

It is kept in parts, each under a key of its own and so with other nodes: whoever stores a record is sent all that are
under its key. Importing this imports hivemind; see `daemon`.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
import time
from collections.abc import Callable, Iterable
from itertools import chain

from hivemind.dht.crypto import DHTRecord
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import RecordValidatorBase
from hivemind.p2p import P2P, PeerID
from hivemind.utils.serializer import MSGPackSerializer

from swarm.errors import RejectedGroup
from swarm.net.wire import open_peer_record
from swarm.types import PeerRecord

RPC_TIMEOUT_S = 3.0
EXPIRY_GRACE_S = 60.0
"""One entry found invalid voids a whole reply: an entry just expired, or so by another clock, must not be that one."""
PARALLEL_RPC = 16
BEAM = 8
"""Nodes asked for a part; its entries are at the five nearest to its key, as far as all know each other."""
PARTS = 16


class PeerRecordValidator(RecordValidatorBase):  # type: ignore[misc]
    """Refuses to store or read anything but a peer's own signed record under the run's key.

    The expiry is inside the signature: an entry cannot be kept alive, or pushed out, by anyone but its owner.
    """

    def __init__(self, run_id: str, clock: Callable[[], float]) -> None:
        """A validator for the directory of one run."""
        self._run_id = run_id
        self._clock = clock
        self._parts = {DHTID.generate(source=key_of(run_id, part)).to_bytes(): part for part in range(PARTS)}

    def validate(self, record: DHTRecord) -> bool:
        """Whether the record is its owner's, in the part where it belongs."""
        part = self._parts.get(record.key)
        if part is None:
            return False
        try:
            sealed, subkey = MSGPackSerializer.loads(record.value), MSGPackSerializer.loads(record.subkey)
            if not isinstance(sealed, bytes):
                return False
            peer = open_peer_record(sealed, self._run_id, now=self._clock() - EXPIRY_GRACE_S)
        except Exception:
            # A stranger's bytes in hivemind's serializer: whatever goes wrong there, the record is not valid.
            return False
        named = subkey == peer.peer_id and part == part_of(peer.peer_id)
        return bool(named and record.expiration_time == peer.expires_at)


class PeerDirectory:
    """Reads and writes the records of a run."""

    def __init__(self, node: DHTNode, run_id: str, clock: Callable[[], float]) -> None:
        """Wrap a DHT node; use `create` instead."""
        self._node = node
        self._run_id = run_id
        self._clock = clock

    @classmethod
    async def create(
        cls, p2p: P2P, run_id: str, clock: Callable[[], float] = time.time, *, keeps: bool = True
    ) -> PeerDirectory:
        """A directory that knows no other node yet; `meet` some. It holds others' records unless not `keeps`."""
        node = await DHTNode.create(
            p2p,
            client_mode=not keeps,
            wait_timeout=RPC_TIMEOUT_S,
            parallel_rpc=PARALLEL_RPC,
            cache_locally=False,
            cache_on_store=False,
            reuse_get_requests=False,
            record_validator=PeerRecordValidator(run_id, clock),
        )
        return cls(node, run_id, clock)

    async def meet(self, peer_ids: Iterable[str], *, first: bool) -> frozenset[str]:
        """Make connected peers part of the DHT; those that answered. The `first` ones are asked whom they know."""
        targets = list(peer_ids)
        pings = (self._node.protocol.call_ping(PeerID.from_base58(peer_id)) for peer_id in targets)
        answers = await asyncio.gather(*pings)
        met = frozenset(peer_id for peer_id, node_id in zip(targets, answers, strict=True) if node_id is not None)
        if met and first:
            await self._node.find_nearest_nodes([self._node.node_id])
        return met

    async def announce(self, peer_id: str, sealed: bytes, expires_at: float) -> bool:
        """Store our own signed record; whether some node took it."""
        key = key_of(self._run_id, part_of(peer_id))
        return bool(await self._node.store(key, sealed, expires_at, subkey=peer_id, beam_size=BEAM))

    async def read(self, *, everything: bool) -> list[tuple[PeerRecord, bytes]]:
        """Valid records in one part or in all of them: opened, and as their peers signed them."""
        parts = range(PARTS) if everything else [random.randrange(PARTS)]
        keys = [key_of(self._run_id, part) for part in parts]
        found = await self._node.get_many(keys, sufficient_expiration_time=math.inf, beam_size=BEAM)
        records = []
        for entry in chain.from_iterable(
            part.value.values() for part in found.values() if part is not None and isinstance(part.value, dict)
        ):
            try:
                records.append((open_peer_record(entry.value, self._run_id, now=self._clock()), entry.value))
            except RejectedGroup:
                continue
        return records


def key_of(run_id: str, part: int) -> str:
    """The key of a part of a run's directory."""
    return f"{run_id}/peers/{part}"


def part_of(peer_id: str) -> int:
    """Where a peer's record belongs, in [0, PARTS)."""
    return hashlib.blake2b(peer_id.encode(), digest_size=1).digest()[0] % PARTS
