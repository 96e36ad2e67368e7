"""The run's directory of peers: one signed, short-lived record a peer in hivemind's DHT.

Importing this imports hivemind; see `daemon`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

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


class PeerRecordValidator(RecordValidatorBase):  # type: ignore[misc]
    """Refuses to store or read anything but a peer's own signed record under the run's key.

    The expiry is inside the signature: an entry cannot be kept alive, or pushed out, by anyone but its owner.
    """

    def __init__(self, run_id: str, clock: Callable[[], float]) -> None:
        """A validator for the directory of one run."""
        self._run_id = run_id
        self._clock = clock
        self._key = DHTID.generate(source=_key(run_id)).to_bytes()

    def validate(self, record: DHTRecord) -> bool:
        """Whether the record is one of this directory's and its owner's."""
        if record.key != self._key:
            return False
        try:
            sealed, subkey = MSGPackSerializer.loads(record.value), MSGPackSerializer.loads(record.subkey)
            if not isinstance(sealed, bytes):
                return False
            peer = open_peer_record(sealed, self._run_id, now=self._clock() - EXPIRY_GRACE_S)
        except Exception:
            # A stranger's bytes in hivemind's serializer: whatever goes wrong there, the record is not valid.
            return False
        return bool(subkey == peer.peer_id and record.expiration_time == peer.expires_at)


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

    async def meet(self, peer_ids: Iterable[str]) -> frozenset[str]:
        """Make connected peers part of the DHT; those that answered."""
        targets = list(peer_ids)
        pings = (self._node.protocol.call_ping(PeerID.from_base58(peer_id)) for peer_id in targets)
        answers = await asyncio.gather(*pings)
        met = frozenset(peer_id for peer_id, node_id in zip(targets, answers, strict=True) if node_id is not None)
        if met:
            await self._node.find_nearest_nodes([self._node.node_id])
        return met

    async def announce(self, peer_id: str, sealed: bytes, expires_at: float) -> bool:
        """Store our own signed record; whether some node took it."""
        stored = await self._node.store(_key(self._run_id), sealed, expires_at, subkey=peer_id)
        return bool(stored)

    async def read(self) -> list[tuple[PeerRecord, bytes]]:
        """Every valid record in the directory: opened, and as its peer signed it."""
        found = await self._node.get(_key(self._run_id), latest=True)
        if found is None or not isinstance(found.value, dict):
            return []
        records = []
        for entry in found.value.values():
            try:
                records.append((open_peer_record(entry.value, self._run_id, now=self._clock()), entry.value))
            except RejectedGroup:
                continue
        return records


def _key(run_id: str) -> str:
    return f"{run_id}/peers"
