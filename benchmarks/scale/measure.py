"""What a record costs on this machine, measured on the code and the daemon that nodes run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

import msgspec

from benchmarks.common.groups import benchmark_manifest, chars_for, make_group
from benchmarks.scale.parameters import KIB, Costs, Line, Load, Transfer
from benchmarks.scale.real import Node, Round, daemons, groups, idle, latencies_s, share, usage
from swarm.errors import TransportError
from swarm.net.hivemind.dht import PeerDirectory
from swarm.net.records.feed import OTHERS_BYTES, OWN_BYTES
from swarm.net.records.identity import Identity
from swarm.net.records.stores import Held, record_id
from swarm.net.records.wire import seal, seal_peer_record
from swarm.types import PeerRecord

PUSHED = (OTHERS_BYTES, OWN_BYTES)
"""Sizes of records that are measured in feeds."""
FETCHED = (4 * KIB, 64 * KIB)
"""And of those that are named there."""
PER_S = 50.0
DIRECTORY_NODES = 8
RECORD_LIFE_S = 200.0


def measure_costs(*, quick: bool = False) -> Costs:
    """All of them; a minute, or with `quick` some seconds and less exact."""
    pushed, named, fetched = asyncio.run(_transfers(20 if quick else 200))
    held = [Held(bytes(range(16)), 10_000 + index, 20.0 + index / 7) for index in range(1_000)]
    return Costs(
        seal_s=_line(FETCHED, [_sealing_s(size, 20 if quick else 200) for size in FETCHED]),
        pushed=pushed,
        named=named,
        fetched=fetched,
        held_bytes=len(msgspec.msgpack.encode(held)) / len(held),
        peer_record_bytes=float(len(_peer_record(Identity.generate(), time.time() + RECORD_LIFE_S)[0])),
        directory_bytes=asyncio.run(_directory(10 if quick else 60)),
    )


def _line(sizes: Sequence[float], costs: Sequence[float]) -> Line:
    (small, large), (less, more) = sizes, costs
    per_byte = max(0.0, (more - less) / (large - small))
    return Line(max(0.0, less - per_byte * small), per_byte)


def _sealing_s(size_bytes: int, repeats: int) -> float:
    """CPU seconds of sealing a group of about this size."""
    identity = Identity.generate()
    run_id = benchmark_manifest(identity).manifest.run_id
    group = msgspec.structs.replace(
        make_group(1, chars_for(size_bytes)), run_id=run_id, peer_id=identity.peer_id, created_at=time.time()
    )
    spent = []
    for _ in range(repeats):
        began = time.process_time()
        seal(identity, run_id, "group", group)
        spent.append(time.process_time() - began)
    return median(spent)


@dataclass(frozen=True)
class _Used:
    """What was used for one record, beyond what idle nodes use."""

    num_bytes: float
    """Of the record itself."""
    server_s: float
    reader_s: float
    nodes_s: float
    wire_bytes: float
    """Read by the reader's daemon, what its node asks for included."""
    asked_bytes: float
    """Read by the server's daemon, besides what its node gives."""


async def _transfers(num_records: int) -> tuple[Transfer, Transfer, Transfer]:
    """In a feed, named, and fetched: from one node to another."""
    async with daemons(2) as nodes:
        server, reader = nodes
        await share(nodes, [server], groups([server], OTHERS_BYTES, 20, foreign=True), PER_S, as_own=False)
        nothing = await idle(nodes, 2.0 + num_records / PER_S)

        async def used(size: int, *, as_own: bool = False, is_known: bool = False) -> _Used:
            records = groups([server], size, num_records, foreign=not as_own)
            for record in records if is_known else ():
                reader.member.records.store.mark_seen(record_id(record))
            done = await share(nodes, [server], records, PER_S, as_own=as_own)
            if len(reader.arrivals) < (0 if is_known else num_records):
                raise TransportError(
                    f"{num_records - len(reader.arrivals)} groups did not arrive: is the machine busy?"
                )
            return _per_record(done, nothing, mean(len(record) for record in records), is_given=not is_known)

        pushed = [await used(size, as_own=True) for size in PUSHED]
        named = await used(FETCHED[0], is_known=True)
        fetched = [_less(await used(size), named) for size in FETCHED]
    return _transfer(*pushed), _transfer(named, replace(named, num_bytes=FETCHED[1])), _transfer(*fetched)


def _per_record(done: Round, nothing: Round, num_bytes: float, *, is_given: bool) -> _Used:
    count, part = done.num_records, done.seconds / nothing.seconds

    def each(used: float, unused: float) -> float:
        return max(0.0, used - part * unused) / count

    (server, reader), (idle_server, idle_reader) = done.usages, nothing.usages
    return _Used(
        num_bytes,
        each(server.cpu_s, idle_server.cpu_s),
        each(reader.cpu_s, idle_reader.cpu_s),
        each(done.own.cpu_s, nothing.own.cpu_s),
        each(reader.read_bytes, idle_reader.read_bytes),
        max(0.0, each(server.read_bytes, idle_server.read_bytes) - num_bytes * is_given),
    )


def _less(used: _Used, named: _Used) -> _Used:
    names = ("server_s", "reader_s", "nodes_s", "wire_bytes", "asked_bytes")
    differences = {name: max(0.0, getattr(used, name) - getattr(named, name)) for name in names}
    return replace(used, **differences)


def _transfer(small: _Used, large: _Used) -> Transfer:
    def line(name: str) -> Line:
        return _line((small.num_bytes, large.num_bytes), (getattr(small, name), getattr(large, name)))

    asked_bytes = min(small.asked_bytes, large.asked_bytes)
    return Transfer(line("server_s"), line("reader_s"), line("nodes_s"), line("wire_bytes"), asked_bytes)


def _peer_record(identity: Identity, expires_at: float) -> tuple[bytes, float]:
    address = f"/ip4/203.0.113.200/tcp/45678/p2p/{identity.peer_id}"
    record = PeerRecord(
        _run_id(), identity.peer_id, (address,) * 3, "Qwen/Qwen2.5-0.5B-Instruct", ("gsm8k",) * 4, "peer", "0.1.0",
        expires_at,
    )  # fmt: skip
    return seal_peer_record(identity, record), expires_at


def _run_id() -> str:
    return f"benchmark-{'0' * 20}"


async def _directory(num_records: int) -> float:
    """Bytes that a node's daemon reads for one more peer in the directory, in one reading of it."""
    async with daemons(DIRECTORY_NODES) as members:
        directories = [await PeerDirectory.create(member.daemon.p2p, _run_id()) for member in members]
        for directory, member in zip(directories, members, strict=True):
            others = (other.member.identity.peer_id for other in members if other is not member)
            await directory.add_peers(others, first=True)
        few = await _reading(directories, members, 0)
        expires_at = time.time() + RECORD_LIFE_S
        for index in range(num_records):
            identity = Identity.generate()
            await directories[index % len(directories)].announce(identity.peer_id, *_peer_record(identity, expires_at))
        return (await _reading(directories, members, num_records) - few) / num_records


async def _reading(directories: Sequence[PeerDirectory], members: Sequence[Node], num_records: int) -> float:
    """Of the node for which it is most: one that holds the directory itself asks one holder less."""
    read = []
    for directory, member in zip(directories, members, strict=True):
        before = usage(member.process)
        found = len(await directory.read(everything=True))
        if found < num_records:
            raise TransportError(f"the directory must have {num_records} peers, got {found}: is the machine busy?")
        read.append(usage(member.process).since(before).read_bytes)
    return float(max(read))


@dataclass(frozen=True)
class Real:
    """What real nodes did with a load."""

    received_bytes: float
    """That the daemon of a node read of each group of others, all it took to get it."""
    duplicates: float
    """Records that a node had already, of each group."""
    fraction: float
    latencies_s: list[float]
    cpu: float
    """CPU seconds per second, of one daemon."""


async def run_daemons(num_nodes: int, load: Load) -> Real:
    """Share groups among nodes that are all connected, each publishing in turn."""
    async with daemons(num_nodes) as nodes:
        await share(nodes, nodes, groups(nodes, 4 * KIB, 2 * num_nodes), 10.0)
        nothing = await idle(nodes, load.num_groups / load.groups_per_s)
        before = [node.member.counters.snapshot() for node in nodes]
        done = await share(nodes, nodes, groups(nodes, load.record_bytes, load.num_groups), load.groups_per_s)
        latencies = latencies_s(nodes, nodes, done)
        known = [
            node.member.counters.snapshot().get("duplicates", 0) - old.get("duplicates", 0)
            for node, old in zip(nodes, before, strict=True)
        ]
    part, pairs = done.seconds / nothing.seconds, load.num_groups * (num_nodes - 1)
    used = list(zip(done.usages, nothing.usages, strict=True))
    # A node gives each record to its daemon once for each follower, as often as others read it.
    read = sum(each.read_bytes - part * unused.read_bytes for each, unused in used)
    given = (pairs + sum(known)) * load.record_bytes
    cpu = sum(each.cpu_s - part * unused.cpu_s for each, unused in used) / num_nodes
    return Real(
        (read - given) / pairs,
        sum(known) / pairs,
        len(latencies) / pairs,
        latencies,
        cpu / load.num_groups * load.groups_per_s,
    )
