"""The run's peer directory: one signed, short-lived record per peer in hivemind's DHT.

It is split into parts with separate keys, and so on separate nodes, because a node that stores a record receives all
records under its key. Importing this imports hivemind's DHT; nodes run it in a separate process, see `directory`.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Collection, Iterable
from itertools import chain

from swarm.errors import Refusal
from swarm.net.addresses.dial import Backoff
from swarm.net.hivemind import light_import
from swarm.net.hivemind.dht_entries import PARTS, Entries, EntryChecker, part_of
from swarm.net.hivemind.dht_protocol import (
    PARALLEL_RPC,
    RPC_TIMEOUT_S,
    BoundedProtocol,
    EntryStorage,
    EntryValidator,
)
from swarm.net.records.wire import open_peer_record
from swarm.types import PeerRecord

with light_import.without_the_rest():
    from hivemind.dht.node import DHTNode
    from hivemind.dht.routing import DHTID
    from hivemind.p2p import P2P, PeerID

MAX_STRANGERS_AT_ONCE = 3 * PARALLEL_RPC
"""Of those that may be silent: a round must end before its time is over."""
SILENT_PAUSE_S, MAX_SILENT_PAUSE_S = 2.0, 600.0
"""Back-off of members that do not answer. A peer's DHT starts a little after its connection."""
BEAM = 8
"""Nodes asked for a part. Its entries are on the five nodes nearest to its key, if all nodes know each other."""


class PeerDirectory:
    """Reads and writes a run's peer records."""

    def __init__(self, node: DHTNode, run_id: str, clock: Callable[[], float], entries: Entries) -> None:
        """Wrap a DHT node that stores `entries`; use `create` instead."""
        self._node = node
        self._run_id = run_id
        self._clock = clock
        self._entries = entries
        self._silent = Backoff(SILENT_PAUSE_S, MAX_SILENT_PAUSE_S)

    @classmethod
    async def create(
        cls, p2p: P2P, run_id: str, clock: Callable[[], float] = time.time, *, keeps: bool = True
    ) -> PeerDirectory:
        """A directory without other nodes; call `add_peers`. It stores others' records if `keeps`."""
        keys = [DHTID.generate(source=key_of(run_id, part)) for part in range(PARTS)]
        checker = EntryChecker(run_id, {key.to_bytes(): part for part, key in enumerate(keys)}, clock)
        entries = Entries(clock)
        node = await DHTNode.create(
            p2p,
            client_mode=True,
            wait_timeout=RPC_TIMEOUT_S,
            parallel_rpc=PARALLEL_RPC,
            cache_locally=False,
            cache_nearest=0,
            cache_on_store=False,
            reuse_get_requests=False,
            record_validator=EntryValidator(checker),
        )
        await BoundedProtocol.join(node, EntryStorage(entries, checker, keys, str(p2p.peer_id)), checker, keeps=keeps)
        return cls(node, run_id, clock, entries)

    def set_members(self, peer_ids: Collection[str]) -> None:
        """Set the connected members of the run; their entries are dropped last."""
        self._entries.members = frozenset(peer_ids)

    async def add_peers(self, peer_ids: Iterable[str], *, first: bool) -> frozenset[str]:
        """Add connected peers to the DHT; returns those in it. The `first` ones are asked for other nodes.

        A peer that does not answer is asked again later, and only so many are asked at a time.
        """
        now = time.monotonic()
        targets = {peer_id: PeerID.from_base58(peer_id) for peer_id in peer_ids}
        strangers = {each: peer for each, peer in targets.items() if peer not in self._node.protocol.routing_table}
        waited = [peer_id for peer_id in strangers if self._silent.wait_s(peer_id, now) <= 0]
        asked = random.sample(waited, min(len(waited), MAX_STRANGERS_AT_ONCE))
        answers = await asyncio.gather(*(self._node.protocol.call_ping(strangers[peer_id]) for peer_id in asked))
        met = set(targets.keys() - strangers.keys())
        for peer_id, node_id in zip(asked, answers, strict=True):
            if node_id is None:
                self._silent.failed(peer_id, time.monotonic())
            else:
                self._silent.succeeded(peer_id)
                met.add(peer_id)
        if met and first:
            await self._node.find_nearest_nodes([self._node.node_id])
        return frozenset(met)

    async def announce(self, peer_id: str, sealed: bytes, expires_at: float) -> bool:
        """Store this node's signed record; whether some node accepted it."""
        key = key_of(self._run_id, part_of(peer_id))
        return bool(await self._node.store(key, sealed, expires_at, subkey=peer_id, beam_size=BEAM))

    async def read(self, *, everything: bool) -> list[tuple[PeerRecord, bytes]]:
        """Valid records in one random part or in all parts, decoded and as signed."""
        parts = range(PARTS) if everything else [random.randrange(PARTS)]
        keys = [key_of(self._run_id, part) for part in parts]
        found = await self._node.get_many(keys, sufficient_expiration_time=math.inf, beam_size=BEAM)
        records = []
        for entry in chain.from_iterable(
            part.value.values() for part in found.values() if part is not None and isinstance(part.value, dict)
        ):
            try:
                records.append((open_peer_record(entry.value, self._run_id, now=self._clock()), entry.value))
            except Refusal:
                continue
        return records


def key_of(run_id: str, part: int) -> str:
    """The key of one part of a run's directory."""
    return f"{run_id}/peers/{part}"
