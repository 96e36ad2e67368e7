"""Peer exchange: what a node tells others about whom it knows, and what it believes of what they tell.

A list is msgpack: sealed `PeerRecord`s, the answering node's own first. Each is signed by the peer it is about and
expires soon, so passing them on needs no trust in who does.
"""

from __future__ import annotations

import random

import msgspec
from msgspec.structs import replace

from swarm.errors import RejectedGroup
from swarm.net.state import NodeState
from swarm.net.wire import MAX_PEER_RECORD_BYTES, open_peer_record, seal_peer_record
from swarm.types import PeerRecord

PEERS_PROTOCOL = "/swarm/peers/1"
MAX_LISTED = 64
MAX_LIST_BYTES = MAX_LISTED * (MAX_PEER_RECORD_BYTES + 8)


class PeerExchange:
    """The sealed records behind `NodeState.known`."""

    def __init__(self, state: NodeState) -> None:
        """Nobody is known yet, in the run of `state`."""
        self._state = state
        self._sealed: dict[str, tuple[PeerRecord, bytes]] = {}

    def answer(self) -> bytes:
        """A list for whoever asks: this node's record and a sample of others not expired; empty without a run."""
        state = self._state
        if state.manifest is None:
            return msgspec.msgpack.encode([])
        now = state.clock()
        fresh = [sealed for record, sealed in self._sealed.values() if record.expires_at > now]
        return msgspec.msgpack.encode([self._own_sealed(), *random.sample(fresh, min(len(fresh), MAX_LISTED - 1))])

    def learn(self, reply: bytes) -> None:
        """Take in another node's list, counting bad records. Raises `RejectedGroup` when it is no list at all."""
        state = self._state
        assert state.manifest is not None
        try:
            listed = msgspec.msgpack.decode(reply, type=list[bytes])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RejectedGroup("malformed", str(error)) from error
        if len(listed) > MAX_LISTED:
            raise RejectedGroup("limits", f"at most {MAX_LISTED} peer records, got {len(listed)}")
        for sealed in listed:
            try:
                record = open_peer_record(sealed, state.manifest.run_id, now=state.clock())
            except RejectedGroup:
                state.counters.add("refused_peer_records")
                continue
            held = self._sealed.get(record.peer_id)
            if record.peer_id != state.identity.peer_id and (held is None or held[0].expires_at < record.expires_at):
                self._sealed[record.peer_id] = (record, sealed)
        state.learn([record for record, _ in self._sealed.values()])
        # The state decides how many peers are remembered.
        self._sealed = {peer_id: self._sealed[peer_id] for peer_id in self._sealed.keys() & state.known.keys()}

    def _own_sealed(self) -> bytes:
        record = self._state.own_record()
        sealed = seal_peer_record(self._state.identity, record)
        if len(sealed) > MAX_PEER_RECORD_BYTES:
            # Where a peer is matters more than what it does.
            sealed = seal_peer_record(self._state.identity, replace(record, tasks=()))
        return sealed
