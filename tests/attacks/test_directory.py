"""What strangers can do to a run's directory of peers, and through it: cost discovery for some seconds."""

from __future__ import annotations

import asyncio
import hashlib
import math
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgpack
import psutil
import pytest
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2PContext
from hivemind.proto import dht_pb2
from hivemind.utils.serializer import MSGPackSerializer

from swarm.net.hivemind.dht import key_of
from swarm.net.records.identity import Identity
from swarm.net.records.wire import seal_peer_record
from swarm.types import PeerRecord
from tests.net.records import until
from tests.nodes.processes import LOOPBACK, Swarm, address_of, command_of, gone, is_daemon, swarm

from .conftest import memory_bytes
from .stranger import Stranger

pytestmark = [pytest.mark.slow, pytest.mark.network]

PARTS = 16
KEYS_AT_ONCE = 4
"""As many as an honest node asks for."""
MIB = 2**20
PATIENCE_S = 300.0


@dataclass
class Run:
    """A bootstrap, one peer, and a stranger connected to both."""

    nodes: dict[str, Swarm]
    stranger: Stranger
    run_id: str

    @property
    def peer_id(self) -> str:
        """Of the one that publishes groups."""
        return list(self.nodes)[1]

    def survivors(self) -> dict[int, list[str]]:
        """The processes that no attack on the directory may end."""
        return {process.pid: command_of(process)[:1] for node in self.nodes.values() for process in lasting(node)}


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, victims: Callable[..., Swarm], strangers: Callable[..., Stranger]
) -> Run:
    folder = tmp_path_factory.mktemp("run")
    bootstrap = victims(folder / "bootstrap", "bootstrap", "examples/tiny.yaml")
    peer = victims(folder / "peer", "join", address_of(bootstrap), "--evaluation.num_questions=0")
    stranger = strangers("directory")
    ids = stranger.connect(address_of(bootstrap), address_of(peer))
    run_id = stranger.manifest(ids[0]).run_id
    stranger.follow(run_id)
    run = Run(dict(zip(ids, (bootstrap, peer), strict=True)), stranger, run_id)
    until(lambda: found(run), "both are in the directory of both", PATIENCE_S)
    return run


@pytest.fixture
def attacker(run: Run, strangers: Callable[..., Stranger], request: pytest.FixtureRequest) -> Run:
    """The run as another stranger has it, who has asked for nothing yet."""
    stranger = strangers(request.node.name.partition("[")[0])
    stranger.connect(*map(address_of, run.nodes.values()))
    return replace(run, stranger=stranger)


def lasting(node: Swarm) -> list[psutil.Process]:
    """A node and its daemon."""
    root, *children = node.tree()
    return [root, *(child for child in children if is_daemon(child))]


def directory(node: Swarm) -> psutil.Process | None:
    """The process that keeps a node's directory, if it is there just now."""
    for process in node.tree():
        with suppress(psutil.NoSuchProcess):
            if "swarm.net.hivemind.directory_process" in process.cmdline():
                return process
    return None


def key(run_id: str, part: int) -> bytes:
    return DHTID.generate(source=key_of(run_id, part)).to_bytes()


def part_of(peer_id: str) -> int:
    return hashlib.blake2b(peer_id.encode(), digest_size=1).digest()[0] % PARTS


def told(run: Run, victim: str, parts: Sequence[int] = range(PARTS)) -> set[str]:
    """Whose records a newcomer that asks one node gets; none if it does not answer."""
    peer_ids: set[str] = set()
    for start in range(0, len(parts), KEYS_AT_ONCE):
        keys = [key(run.run_id, part) for part in parts[start : start + KEYS_AT_ONCE]]
        response = attempt(run, victim, "rpc_find", dht_pb2.FindRequest(keys=keys))
        for result in response.results if response is not None else ():
            if result.type == dht_pb2.FOUND_DICTIONARY:
                peer_ids |= {subkey for subkey, _ in MSGPackSerializer.loads(result.value).items()}
    return peer_ids


def found(run: Run) -> bool:
    """Whether every node of the run is found in the directory, whichever of them is asked."""
    return all(set(run.nodes) <= told(run, victim, sorted({*map(part_of, run.nodes)})) for victim in run.nodes)


def attempt(run: Run, victim: str, method: str, request: object, timeout_s: float = 10.0) -> object | None:
    """What a node answers to any request of the DHT; None if it refuses, or not at all."""
    with suppress(Exception):
        return run.stranger.dht(victim, lambda dht, peer: getattr(dht.get_stub(peer), method)(request), timeout_s)
    return None


def attack(run: Run, victim: str, method: str, requests: Sequence[object], timeout_s: float = 20.0) -> int:
    """Many requests at once; how many were answered."""

    async def one(call: Awaitable[object]) -> bool:
        with suppress(Exception):
            async with asyncio.timeout(timeout_s - 5):
                await call
                return True
        return False

    async def all_of(dht: object, peer: object) -> int:
        stub = dht.get_stub(peer)
        return sum(await asyncio.gather(*(one(getattr(stub, method)(request)) for request in requests)))

    try:
        return run.stranger.dht(victim, all_of, timeout_s)
    except TimeoutError:
        return 0


def store(entries: Sequence[tuple[bytes, bytes, bytes, float]], node_id: bytes = b"") -> object:
    keys, subkeys, values, expiries = zip(*entries, strict=True)
    return dht_pb2.StoreRequest(
        keys=keys,
        subkeys=subkeys,
        values=values,
        expiration_time=expiries,
        in_cache=[False] * len(keys),
        peer=dht_pb2.NodeInfo(node_id=node_id),
    )


def fake(run_id: str, size: int = 0) -> tuple[bytes, bytes, bytes, float]:
    """An entry that a new identity signed."""
    identity = Identity.generate()
    expires_at = time.time() + 200.0
    record = PeerRecord(run_id, identity.peer_id, (), "m" * size, (), "peer", "0.1.0", expires_at)
    sealed = seal_peer_record(identity, record)
    place = key(run_id, part_of(identity.peer_id))
    return place, msgpack.packb(identity.peer_id), msgpack.packb(sealed, use_bin_type=True), expires_at


def nested(depth: int, code: int = 0x40) -> bytes:
    """Extensions of msgpack inside one another: each is a call of the decoder inside the last."""
    packed = msgpack.packb([])
    for _ in range(depth):
        packed = msgpack.packb([msgpack.ExtType(code, packed)])
    return packed


def still_there(run: Run, before: dict[int, str]) -> None:
    """Nodes and daemons are the same processes, peers go on publishing, and the directory is found in again."""
    heard = len(run.stranger.heard)
    assert run.survivors() == before, "every node and every daemon lives"
    until(lambda: run.peer_id in {sender for sender, _ in run.stranger.heard[heard:]}, "the peer's gossip", PATIENCE_S)
    until(lambda: found(run), "the directory works again", PATIENCE_S)
    assert run.survivors() == before, "every node and every daemon lives"


def test_nested_extensions_cost_no_node(run: Run, attacker: Run) -> None:
    before = run.survivors()
    now = time.time() + 60
    places = [key(run.run_id, part) for part in range(PARTS)]
    for bomb in (nested(200), nested(200, 0x50), nested(2_000), b"\x91" * 50_000, b"\xdd\xff\xff\xff\xff"):
        entries = [(place, subkey, bomb, now) for place in places for subkey in (bomb, b"", msgpack.packb("x"))]
        for victim in run.nodes:
            attempt(attacker, victim, "rpc_store", store(entries[:1]), 3.0)
            attempt(attacker, victim, "rpc_store", store(entries[1:PARTS]), 3.0)
    still_there(run, before)


def test_a_request_that_repeats_a_key_takes_no_memory(run: Run, attacker: Run) -> None:
    before = run.survivors()
    victim, node = next(iter(run.nodes.items()))
    mine = [entry for entry in (fake(run.run_id, 800) for _ in range(480)) if entry[0] == key(run.run_id, 3)]
    for entry in mine:
        attempt(attacker, victim, "rpc_store", store([entry]))
    at_rest = memory_bytes(node)
    for count in (10_000, 20_000):
        repeated = dht_pb2.FindRequest(keys=[mine[0][0]] * count)
        peak = watch(node, lambda repeated=repeated: attempt(attacker, victim, "rpc_find", repeated))
        assert peak - at_rest < 100 * MIB, f"from {at_rest >> 20} to {peak >> 20} MiB"
    keys = [key(run.run_id, part) for part in range(PARTS)]
    assert attempt(attacker, victim, "rpc_find", dht_pb2.FindRequest(keys=keys * 2)) is None
    still_there(run, before)


def test_fake_identities_fill_no_memory_and_push_nobody_out(
    run: Run, attacker: Run, strangers: Callable[..., Stranger]
) -> None:
    before = run.survivors()
    victim, node = next(iter(run.nodes.items()))
    at_rest = memory_bytes(node)
    fakes = [fake(run.run_id, 600) for _ in range(4_000)]

    def flood() -> None:
        for start in range(0, len(fakes), 16):
            attempt(attacker, victim, "rpc_store", store(fakes[start : start + 16]), 3.0)

    peak = watch(node, flood)
    assert peak - at_rest < 60 * MIB, f"from {at_rest >> 20} to {peak >> 20} MiB"
    still_there(run, before)
    census = strangers("census")
    census.connect(address_of(node))
    everybody = told(replace(run, stranger=census), victim)
    assert set(run.nodes) <= everybody and len(everybody) <= PARTS * 128


def test_nothing_is_stored_but_signed_records_in_their_place(run: Run, attacker: Run) -> None:
    victim = next(iter(run.nodes))
    place, subkey, value, expires_at = fake(run.run_id)
    other = key("another run", 1)
    late = time.time() + 1e6
    wrong = [
        (other, subkey, value, expires_at),
        (b"", subkey, value, expires_at),
        (b"\xff" * 2_000, subkey, value, expires_at),
        (key(run.run_id, (part_of(msgpack.unpackb(subkey)) + 1) % PARTS), subkey, value, expires_at),
        *((place, subkey, value, expiry) for expiry in (math.nan, math.inf, -math.inf, -1.0, 1e308, late)),
        *((place, msgpack.packb(odd), value, expires_at) for odd in (None, 7, [1], {"a": 1}, b"x", "x" * 5_000, 1e99)),
        *((place, subkey, odd, expires_at) for odd in (b"", b"\xc0", msgpack.packb({1: 2}), value + b"\x00", b"\xc1")),
        (place, b"", MSGPackSerializer.dumps(["no", "dictionary"]), expires_at),
        (place, b"", msgpack.packb(msgpack.ExtType(0x50, msgpack.packb([-1, math.nan, [[1, 2, 3]]]))), expires_at),
        (place, msgpack.packb(None), value, expires_at),
    ]
    for entry in wrong:
        response = attempt(attacker, victim, "rpc_store", store([entry]))
        assert response is None or not any(response.store_ok), entry
    response = attempt(attacker, victim, "rpc_store", store([(place, subkey, value, expires_at)]), PATIENCE_S)
    assert list(response.store_ok) == [True], "a good one is"


def test_pathological_requests_leave_the_directory_as_it_was(run: Run, attacker: Run) -> None:
    before = run.survivors()
    for victim in run.nodes:
        for node_id in (b"\xff" * 20, bytes(20), b"\x80" + bytes(19), b"\xff" * 21, b"\x01" * 100_000, b"\xff"):
            info = dht_pb2.NodeInfo(node_id=node_id)
            attempt(attacker, victim, "rpc_ping", dht_pb2.PingRequest(peer=info, validate=True), 5.0)
            attempt(attacker, victim, "rpc_find", dht_pb2.FindRequest(keys=[key(run.run_id, 0)], peer=info), 5.0)
            attempt(attacker, victim, "rpc_store", store([fake(run.run_id)], node_id), 5.0)
        for keys in ([], [b""], [b"\xff" * 21], [b"\x00" * 200_000], [bytes(20)] * 17):
            attempt(attacker, victim, "rpc_find", dht_pb2.FindRequest(keys=keys), 5.0)
        uneven = store([fake(run.run_id)])
        del uneven.values[:]
        attempt(attacker, victim, "rpc_store", uneven, 5.0)
    still_there(run, before)


def test_floods_of_requests_take_no_memory_and_stop_nobody(run: Run, attacker: Run) -> None:
    before = run.survivors()
    victim, node = list(run.nodes.items())[1]
    at_rest = memory_bytes(node)
    keys = [key(run.run_id, part) for part in range(PARTS)]
    pings = [dht_pb2.PingRequest(peer=dht_pb2.NodeInfo(node_id=DHTID.generate().to_bytes())) for _ in range(2_000)]

    def flood() -> None:
        attack(attacker, victim, "rpc_find", [dht_pb2.FindRequest(keys=keys)] * 2_000)
        attack(attacker, victim, "rpc_ping", pings)
        attack(attacker, victim, "rpc_find", [dht_pb2.FindRequest(keys=[bytes(100_000)])] * 300)

    heard = len(run.stranger.heard)
    peak = watch(node, flood)
    assert peak - at_rest < 300 * MIB, f"from {at_rest >> 20} to {peak >> 20} MiB"
    assert any(sender == run.peer_id for sender, _ in run.stranger.heard[heard:]), "the peer publishes meanwhile"
    still_there(run, before)


def test_a_node_of_the_directory_that_answers_with_anything_ends_no_ones_search(run: Run, attacker: Run) -> None:
    before = run.survivors()
    place, subkey, value, _ = fake(run.run_id)
    pings: Counter[str] = Counter()
    searches: Counter[str] = Counter()
    far = [[msgpack.unpackb(subkey), value, math.inf]]
    replies = (
        dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=nested(200, 0x50), expiration_time=math.inf),
        dht_pb2.FindResult(type=dht_pb2.FOUND_REGULAR, value=nested(200), expiration_time=math.inf),
        dht_pb2.FindResult(
            type=dht_pb2.FOUND_DICTIONARY,
            value=msgpack.packb(msgpack.ExtType(0x50, msgpack.packb([1, math.inf, far]))),
            expiration_time=math.inf,
        ),
        dht_pb2.FindResult(nearest_node_ids=[bytes(20)] * 800, nearest_peer_ids=[b"\x12" * 34] * 800),
        dht_pb2.FindResult(nearest_node_ids=[b"\xff" * 100], nearest_peer_ids=[b"\x12" * 50_000]),
    )

    async def ping(request: object, context: P2PContext) -> object:
        # Of the wrong length at first; then it is taken for a node of the directory, and asked.
        pings[str(context.remote_id)] += 1
        node_id = b"\xff" * 21 if pings[str(context.remote_id)] == 1 else bytes(20)
        return dht_pb2.PingResponse(peer=dht_pb2.NodeInfo(node_id=node_id))

    async def find(request: object, context: P2PContext) -> object:
        reply = replies[searches[str(context.remote_id)] % len(replies)]
        searches[str(context.remote_id)] += 1
        return dht_pb2.FindResponse(results=[reply] * len(request.keys), peer=dht_pb2.NodeInfo(node_id=bytes(20)))

    async def take(request: object, context: P2PContext) -> object:
        return dht_pb2.StoreResponse(store_ok=[True] * 1_000, peer=dht_pb2.NodeInfo(node_id=bytes(20)))

    attacker.stranger.follow(run.run_id)
    p2p = attacker.stranger.daemon.p2p
    handlers = {
        "DHTProtocol.rpc_ping": (ping, dht_pb2.PingRequest),
        "DHTProtocol.rpc_find": (find, dht_pb2.FindRequest),
        "DHTProtocol.rpc_store": (take, dht_pb2.StoreRequest),
    }
    for name, handler in handlers.items():
        attacker.stranger.run(p2p.add_protobuf_handler(name, *handler))
    asked = {victim: len(replies) for victim in run.nodes}
    until(lambda: all(searches[victim] >= count for victim, count in asked.items()), "all are told all", PATIENCE_S)
    for name in handlers:
        attacker.stranger.run(p2p.remove_protobuf_handler(name))
    still_there(run, before)


def test_a_directory_that_is_killed_comes_back_and_nothing_else_notices(run: Run) -> None:
    before = run.survivors()
    killed = {victim: directory(node) for victim, node in run.nodes.items()}
    assert None not in killed.values()
    for process in killed.values():
        process.kill()
    still_there(run, before)
    for victim, node in run.nodes.items():
        until(lambda node=node: directory(node), "another process", PATIENCE_S)
        assert directory(node) != killed[victim]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_its_node(tmp_path: Path, number: signal.Signals) -> None:
    with swarm(tmp_path, "bootstrap", "examples/tiny.yaml", "--out", str(tmp_path), *LOOPBACK) as node:
        address_of(node)
        until(lambda: directory(node), "a directory", PATIENCE_S)
        everything = node.tree()
        node.process.send_signal(number)
        assert gone(everything)
        assert node.wait() == (130 if number is signal.SIGINT else -number)


def watch(node: Swarm, act: Callable[[], object]) -> int:
    """The most memory that a node and its processes take while something is done to it."""
    peak = memory_bytes(node)
    with ThreadPoolExecutor(1) as pool:
        doing = pool.submit(act)
        while not doing.done():
            peak = max(peak, memory_bytes(node))
            time.sleep(0.02)
    doing.result()
    return max(peak, memory_bytes(node))
