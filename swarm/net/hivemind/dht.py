"""The run's peer directory in hivemind's DHT: one signed, short-lived record per peer.

It is split into parts with separate keys, and so on separate nodes, because a node that stores a record receives all
records under its key. Nodes run it in a separate process, see `directory`.

hivemind's protocol gets limits here. Requests are limited in size and charged to their sender before protobuf decodes
them. The number of items in requests and answers is checked before they are processed. hivemind's own handlers do
neither: one request could name a key twenty thousand times, or nest extensions until the decoder's stack overflows.

Importing this imports hivemind's DHT. All uses of its private interfaces are here.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from itertools import chain

from google.protobuf.message import Message

from swarm.errors import Refusal
from swarm.net.addresses.dial import Backoff
from swarm.net.bandwidth import RatePerName
from swarm.net.hivemind import light_import
from swarm.net.hivemind.dht_entries import MAX_ENTRIES, PARTS, Entries, Entry, EntryChecker, part_of
from swarm.net.records.wire import open_peer_record
from swarm.types import PeerRecord

with light_import.without_the_rest():
    from hivemind.dht.crypto import DHTRecord
    from hivemind.dht.node import DHTNode
    from hivemind.dht.protocol import DHTProtocol
    from hivemind.dht.routing import DHTID
    from hivemind.dht.storage import DictionaryDHTValue
    from hivemind.dht.validation import RecordValidatorBase
    from hivemind.p2p import P2P, P2PContext, PeerID
    from hivemind.proto import dht_pb2
    from hivemind.utils.timed_storage import ValueWithExpiration

MAX_MESSAGE_BYTES = 2**18
"""Limit of a request or an answer."""
MAX_REPLY_BYTES = 3 * 2**16
"""Limit of the entries in one answer; leaves room for neighbours."""
MAX_KEYS = PARTS
MAX_NEIGHBOURS = 20
MAX_PEER_ID_BYTES = 64
"""hivemind encodes each in base 58, which takes quadratic time."""
MAX_ROUTES = 512
MAX_IN_BACKGROUND = 32
REQUEST_COST_BYTES = 4_096
"""Charge per request, in addition to its bytes and those of its answer."""
ALLOWANCE_BYTES = 4 * 2**20
ALLOWANCE_BYTES_PER_S = 2**18
"""Per sender; lets a newcomer read all of a large directory at once."""
MAX_SENDERS = 1_024
RPC_TIMEOUT_S = 3.0
PARALLEL_RPC = 16
MAX_PINGED_AT_ONCE = 3 * PARALLEL_RPC
"""Peers that may be silent: a round must end before its time is over."""
SILENT_PAUSE_S, MAX_SILENT_PAUSE_S = 2.0, 600.0
"""Back-off of members that do not answer. A peer's DHT starts a little after its connection."""
BEAM = 8
"""Nodes asked for a part. Its entries are on the five nodes nearest to its key, if all nodes know each other."""


class Refused(Exception):
    """A request or an answer exceeds the limits."""


class Allowances:
    """Rate limit per sender. Pure but for the clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """All allowances are full."""
        self._clock = clock
        self._rates = RatePerName(ALLOWANCE_BYTES_PER_S, ALLOWANCE_BYTES, MAX_SENDERS)

    def admit(self, sender: PeerID) -> None:
        """Raises `Refused` for a sender that has used up its allowance."""
        if self._rates.bucket(sender).left(self._clock()) < 0:
            raise Refused("the rate limit is exceeded, ask later")

    def charge(self, sender: PeerID, num_bytes: int) -> None:
        """Charge a sender."""
        self._rates.bucket(sender).spend(num_bytes, self._clock())


class BoundedP2P(P2P):  # type: ignore[misc]
    """hivemind's client of the daemon; it rejects messages above the size limit before parsing."""

    def __init__(self) -> None:
        """Use `replicate` instead."""
        super().__init__()
        self._allowances = Allowances()

    async def _add_protobuf_unary_handler(
        self,
        handle_name: str,
        handler: Callable[[Message, P2PContext], Awaitable[Message]],
        input_protobuf_type: type[Message],
        balanced: bool = False,
    ) -> None:
        async def answer(request: bytes, remote_id: PeerID) -> bytes:
            self._allowances.admit(remote_id)
            self._allowances.charge(remote_id, REQUEST_COST_BYTES + len(request))
            _require(len(request) <= MAX_MESSAGE_BYTES, "a request is too large")
            context = P2PContext(handle_name=handle_name, local_id=self.peer_id, remote_id=remote_id)
            reply: bytes = (await handler(input_protobuf_type.FromString(request), context)).SerializeToString()
            self._allowances.charge(remote_id, len(reply))
            return reply

        await self._client.add_unary_handler(handle_name, answer, balanced=balanced)

    async def _call_unary_protobuf_handler(
        self, peer_id: PeerID, handle_name: str, input: Message, output_protobuf_type: type[Message]
    ) -> Message:
        # The daemon would dial the addresses that a peer claimed while it was connected.
        _require(any(each.peer_id == peer_id for each in await self.list_peers()), "the peer is not connected")
        reply = await self._client.call_unary_handler(peer_id, handle_name, input.SerializeToString())
        _require(len(reply) <= MAX_MESSAGE_BYTES, "an answer is too large")
        return output_protobuf_type.FromString(reply)

    async def wait_closed(self) -> None:
        """Wait until either direction of the connection to the daemon has ended, for any reason."""
        control = self._client.control
        await asyncio.wait({control._read_task, control._write_task}, return_when=asyncio.FIRST_COMPLETED)


class EntryValidator(RecordValidatorBase):  # type: ignore[misc]
    """`EntryChecker` as a hivemind validator, applied before this node's own entry is stored."""

    def __init__(self, checker: EntryChecker) -> None:
        """A validator for the directory of one run."""
        self._checker = checker

    def validate(self, record: DHTRecord) -> bool:
        """Whether the record is signed by its owner and in the right part."""
        try:
            self._checker.open(record.key, record.subkey, record.value, record.expiration_time)
        except Refusal:
            return False
        return True


class EntryStorage:
    """`Entries` as the local storage of hivemind's node."""

    def __init__(self, entries: Entries, checker: EntryChecker, keys: list[DHTID], own_id: str) -> None:
        """`keys`: the keys of the parts, in order."""
        self.entries = entries
        self.keys = keys
        self._checker = checker
        self._own_id = own_id

    def get(self, key: DHTID) -> ValueWithExpiration[DictionaryDHTValue] | None:
        """All entries under a key."""
        return as_value(self.entries.of(self.keys.index(key))) if key in self.keys else None

    def store(self, key: DHTID, value: bytes, expiration_time: float, subkey: str | None = None) -> bool:
        """Store this node's own entry; other entries arrive through `BoundedProtocol`."""
        packed = DHTProtocol.serializer.dumps(subkey)
        try:
            entry = self._checker.open(key.to_bytes(), packed, value, expiration_time)
        except Refusal:
            return False
        return self.entries.put(entry, by_owner=entry.peer_id == self._own_id)


class BoundedProtocol(DHTProtocol):  # type: ignore[misc]
    """hivemind's protocol for a node that stores only entries of one run's directory."""

    checker: EntryChecker
    storage: EntryStorage
    _background: set[asyncio.Task[object]]

    @classmethod
    async def join(cls, node: DHTNode, storage: EntryStorage, checker: EntryChecker, *, keeps: bool) -> None:
        """Replace a node's protocol, which was created in client mode; answer others if the node `keeps` entries."""
        made = node.protocol
        self = await cls.create(
            made.p2p,
            made.node_id,
            made.bucket_size,
            made.routing_table.depth_modulo,
            made.num_replicas,
            made.wait_timeout,
            PARALLEL_RPC,
            client_mode=True,
            record_validator=made.record_validator,
        )
        self.checker, self.storage = checker, storage
        self._background = set()
        node.protocol = self
        if keeps:
            self.client_mode = False
            self.node_info = dht_pb2.NodeInfo(node_id=self.node_id.to_bytes())
            await self.add_p2p_handlers(self.p2p)

    @classmethod
    def _get_handle_name(cls, namespace: str | None, method_name: str) -> str:
        return f"{DHTProtocol.__name__}.{method_name}"

    async def call_ping(self, peer: PeerID, validate: bool = False, strict: bool = True) -> DHTID | None:
        """A peer's node id; None without a valid answer."""
        try:
            return await super().call_ping(peer, validate, strict)
        except (AssertionError, ValueError, OverflowError):
            # hivemind parses the answer outside of the library's error handling.
            return None

    async def rpc_ping(self, request: dht_pb2.PingRequest, context: P2PContext) -> dht_pb2.PingResponse:
        """Handle a ping: the sender wants to be known here, and may want to be called back."""
        _require(len(request.peer.node_id) in (0, DHTID.HASH_NBYTES), "a node id has a wrong length")
        if not (request.validate and self._has_room()):
            return await super().rpc_ping(dht_pb2.PingRequest(peer=request.peer), context)
        # The callback happens before the answer.
        task = asyncio.current_task()
        assert task is not None
        self._background.add(task)
        try:
            return await super().rpc_ping(request, context)
        finally:
            self._background.discard(task)

    async def rpc_store(self, request: dht_pb2.StoreRequest, context: P2PContext) -> dht_pb2.StoreResponse:
        """Handle a store request."""
        columns = (request.keys, request.subkeys, request.values, request.expiration_time)
        _require(
            len(set(map(len, columns))) == 1 and len(request.keys) <= MAX_KEYS,
            "a store request must have up to 16 complete entries",
        )
        await self.rpc_ping(dht_pb2.PingRequest(peer=request.peer), context)
        if any(request.in_cache):
            stored = [False] * len(request.keys)
        else:
            stored = [self._store(*row, sender=str(context.remote_id)) for row in zip(*columns, strict=True)]
        return dht_pb2.StoreResponse(store_ok=stored, peer=self.node_info)

    async def rpc_find(self, request: dht_pb2.FindRequest, context: P2PContext) -> dht_pb2.FindResponse:
        """Handle a search for entries or for nodes near a key."""
        keys = list(request.keys)
        _require(len(keys) == len(set(keys)) <= MAX_KEYS, "a find request must have up to 16 distinct keys")
        _require(all(len(key) == DHTID.HASH_NBYTES for key in keys), "a key has a wrong length")
        await self.rpc_ping(dht_pb2.PingRequest(peer=request.peer), context)
        asker = DHTID.from_bytes(request.peer.node_id) if request.peer.node_id else None
        results = [self._find(DHTID.from_bytes(key), asker, MAX_REPLY_BYTES // len(keys)) for key in keys]
        return dht_pb2.FindResponse(results=results, peer=self.node_info)

    async def call_find(
        self, peer: PeerID, keys: Collection[DHTID]
    ) -> dict[DHTID, tuple[ValueWithExpiration[DictionaryDHTValue] | None, dict[DHTID, PeerID]]] | None:
        """A peer's entries and neighbours by key; None without a valid answer."""
        keys = list(keys)
        request = dht_pb2.FindRequest(keys=[key.to_bytes() for key in keys], peer=self.node_info)
        try:
            async with self.rpc_semaphore:
                response = await self.get_stub(peer).rpc_find(request, timeout=self.wait_timeout)
            _require(len(response.results) == len(keys), "an answer must have one result per key")
            found = {key: self._read(key, result) for key, result in zip(keys, response.results, strict=True)}
            node_id = DHTID.from_bytes(response.peer.node_id) if response.peer.node_id else None
        except Exception:
            # hivemind or protobuf may raise anything for an untrusted answer; it counts as no answer.
            await self.update_routing_table(self.routing_table.get(peer_id=peer), peer, responded=False)
            return None
        if node_id is not None:
            await self.update_routing_table(node_id, peer)
        return found

    async def update_routing_table(self, node_id: DHTID | None, peer_id: PeerID, responded: bool = True) -> None:
        """Update the routing table: one node id per peer, one peer per node id, bounded in size."""
        table = self.routing_table
        former = table.get(peer_id=peer_id)
        node_id = former if node_id is None else node_id
        if node_id is None or table.get(node_id=node_id) not in (None, peer_id):
            return
        # hivemind's table raises KeyError for a node id on the edge of a bucket.
        with suppress(KeyError):
            if former is not None and (not responded or former != node_id):
                del table[former]
            if not responded:
                return
            if former is None and len(table.uid_to_peer_id) >= MAX_ROUTES:
                del table[random.choice(list(table.uid_to_peer_id))]
            if former is None:
                self._hand_over(node_id, peer_id)
            idle = table.add_or_update_node(node_id, peer_id)
            if idle is not None:
                self._start(self.call_ping(idle[1]))

    def _hand_over(self, node_id: DHTID, peer_id: PeerID) -> None:
        """Send a new node the entries that it should store too, if this node is the nearest that stores them."""
        due = {key: part for part, key in enumerate(self.storage.keys) if self._is_due(key, node_id)}
        held = {key: as_value(self.storage.entries.of(part, MAX_REPLY_BYTES // PARTS)) for key, part in due.items()}
        values = {key: value for key, value in held.items() if value is not None}
        if values:
            dictionaries = [value.value for value in values.values()]
            expiries = [value.expiration_time for value in values.values()]
            self._start(self.call_store(peer_id, list(values), dictionaries, expiries))

    def _is_due(self, key: DHTID, node_id: DHTID) -> bool:
        holders = self.routing_table.get_nearest_neighbors(key, self.num_replicas, exclude=self.node_id)
        distances = [holder.xor_distance(key) for holder, _ in holders]
        nearest = not distances or self.node_id.xor_distance(key) < distances[0]
        return nearest and (not distances or node_id.xor_distance(key) < distances[-1])

    def _store(self, key: bytes, subkey: bytes, value: bytes, expires_at: float, *, sender: str) -> bool:
        try:
            if subkey == self.IS_DICTIONARY:
                entries = self.checker.open_part(key, value, MAX_MESSAGE_BYTES)
            else:
                entries = [self.checker.open(key, subkey, value, expires_at)]
        except Refusal:
            return False
        # A list, not a generator: every entry is stored even if an earlier one was refused.
        return all([self.storage.entries.put(entry, by_owner=entry.peer_id == sender) for entry in entries])

    def _find(self, key: DHTID, asker: DHTID | None, max_bytes: int) -> dht_pb2.FindResult:
        try:
            part = self.checker.part(key.to_bytes())
        except Refusal:
            entries = []
        else:
            entries = self.storage.entries.of(part, max_bytes)
        value = as_value(entries)
        result = (
            dht_pb2.FindResult(type=dht_pb2.NOT_FOUND)
            if value is None
            else dht_pb2.FindResult(
                type=dht_pb2.FOUND_DICTIONARY,
                value=self.serializer.dumps(value.value),
                expiration_time=value.expiration_time,
            )
        )
        for node_id, peer_id in self.routing_table.get_nearest_neighbors(key, self.bucket_size, exclude=asker):
            result.nearest_node_ids.append(node_id.to_bytes())
            result.nearest_peer_ids.append(peer_id.to_bytes())
        return result

    def _read(
        self, key: DHTID, result: dht_pb2.FindResult
    ) -> tuple[ValueWithExpiration[DictionaryDHTValue] | None, dict[DHTID, PeerID]]:
        pairs = list(zip(result.nearest_node_ids, result.nearest_peer_ids, strict=False))[:MAX_NEIGHBOURS]
        for node_id, peer_id in pairs:
            _require(len(node_id) == DHTID.HASH_NBYTES, "a node id has a wrong length")
            _require(0 < len(peer_id) <= MAX_PEER_ID_BYTES, "a peer id has a wrong length")
        nearest = {DHTID.from_bytes(node_id): PeerID(peer_id) for node_id, peer_id in pairs}
        if result.type != dht_pb2.FOUND_DICTIONARY:
            return None, nearest
        try:
            return as_value(self.checker.open_part(key.to_bytes(), result.value, MAX_MESSAGE_BYTES)), nearest
        except Refusal:
            return None, nearest

    def _has_room(self) -> bool:
        return len(self._background) < MAX_IN_BACKGROUND

    def _start(self, call: Coroutine[object, object, object]) -> None:
        """Start a background call, unless too many are running."""
        if not self._has_room():
            call.close()
            return
        task = asyncio.create_task(call)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def as_value(entries: list[Entry]) -> ValueWithExpiration[DictionaryDHTValue] | None:
    """Entries of one part in hivemind's type; None if there are none.

    A search merges other nodes' entries into the first value, so `maxsize` allows more than one part's limit.
    """
    if not entries:
        return None
    dictionary = DictionaryDHTValue(maxsize=8 * MAX_ENTRIES)
    for entry in entries:
        dictionary.store(entry.peer_id, entry.packed, entry.expires_at)
    return ValueWithExpiration(dictionary, dictionary.latest_expiration_time)


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Refused(otherwise)


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
        unmet = {each: peer for each, peer in targets.items() if peer not in self._node.protocol.routing_table}
        waited = [peer_id for peer_id in unmet if self._silent.wait_s(peer_id, now) <= 0]
        asked = random.sample(waited, min(len(waited), MAX_PINGED_AT_ONCE))
        answers = await asyncio.gather(*(self._node.protocol.call_ping(unmet[peer_id]) for peer_id in asked))
        met = set(targets.keys() - unmet.keys())
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
