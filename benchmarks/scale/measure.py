"""What one message costs on this machine, measured on the code and the daemon that nodes run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median

import msgspec

from benchmarks.common.groups import benchmark_manifest, chars_for, make_group
from benchmarks.scale.parameters import KIB, Costs, Line, Load
from benchmarks.scale.real import Member, Round, daemons, latencies_s, share, usage
from swarm.errors import TransportError
from swarm.net.hivemind.dht import PeerDirectory
from swarm.net.records.envelope import read_record
from swarm.net.records.identity import Identity
from swarm.net.records.record_store import Held
from swarm.net.records.wire import Limits, check_seal, open_group, open_manifest, seal, seal_peer_record
from swarm.types import PeerRecord

SMALL, LARGE = 4 * KIB, 64 * KIB
FEW, SOME = 2, 5
"""Daemons: of few none has anybody to forward to, of some all are in one another's mesh."""
MESSAGE_ID_BYTES = 38 + 8 + 2
"""The sender's id, a sequence number, and their tag and length."""
FRAMING_BYTES = 200
"""Of a gossip message, roughly: signature, ids, topic, encryption."""
DIRECTORY_NODES = 8
RECORD_LIFE_S = 200.0


def measure_costs(*, quick: bool = False) -> Costs:
    """All of them; a minute, or with `quick` some seconds and less exact."""
    repeats = 20 if quick else 200
    num_messages = 50 if quick else 400
    (seal_small, open_small), (seal_large, open_large) = (_sealing(size, repeats) for size in (SMALL, LARGE))
    small, large = asyncio.run(_gossip(num_messages))
    held = [Held(bytes(range(16)), 10_000 + index, 20.0 + index / 7) for index in range(1_000)]
    return Costs(
        seal_s=_line(seal_small, seal_large),
        open_s=_line(open_small, open_large),
        take_in_s=_line(small.take_in_s, large.take_in_s),
        first_s=_line(small.first_s, large.first_s),
        duplicate_s=_line(small.duplicate_s, large.duplicate_s),
        send_s=_line(small.send_s, large.send_s),
        wire_bytes=_line(small.wire_bytes, large.wire_bytes),
        id_bytes=float(MESSAGE_ID_BYTES),
        held_bytes=len(msgspec.msgpack.encode(held)) / len(held),
        peer_record_bytes=float(len(_peer_record(Identity.generate(), time.time() + RECORD_LIFE_S)[0])),
        directory_bytes=asyncio.run(_directory(20 if quick else 60)),
    )


def _line(small: float, large: float) -> Line:
    per_byte = max(0.0, (large - small) / (LARGE - SMALL))
    return Line(max(0.0, small - per_byte * SMALL), per_byte)


def _cpu_s(act: Callable[[], object], repeats: int) -> float:
    spent = []
    for _ in range(repeats):
        began = time.process_time()
        act()
        spent.append(time.process_time() - began)
    return median(spent)


def _sealing(size_bytes: int, repeats: int) -> tuple[float, float]:
    """CPU seconds of sealing and of opening a group of about this size."""
    identity, limits = Identity.generate(), Limits()
    run_id = open_manifest(benchmark_manifest(identity)).run_id
    group = msgspec.structs.replace(
        make_group(1, chars_for(size_bytes)), run_id=run_id, peer_id=identity.peer_id, created_at=time.time()
    )
    sealed = seal(identity, run_id, "group", group)
    return (
        _cpu_s(lambda: seal(identity, run_id, "group", group), repeats),
        _cpu_s(lambda: open_group(check_seal(read_record(sealed, size_bytes * 2), run_id), limits), repeats),
    )


@dataclass(frozen=True)
class _Message:
    """What one gossip message of some size costs."""

    take_in_s: float
    first_s: float
    duplicate_s: float
    send_s: float
    wire_bytes: float


async def _gossip(num_messages: int) -> list[_Message]:
    """Of a small message and of a large one."""
    rounds: dict[tuple[int, int], Round] = {}
    for count in (FEW, SOME):
        async with daemons(count) as members:
            await share(members, members[:1], SMALL, 100.0, 20)
            for size in (SMALL, LARGE):
                rounds[count, size] = await share(members, members[:1], size, 80.0, num_messages)
    return [_per_message(rounds[FEW, size], rounds[SOME, size], size) for size in (SMALL, LARGE)]


def _per_message(few: Round, some: Round, size: int) -> _Message:
    """Costs by subtraction: a publisher only sends, and the one receiver of a pair only takes first copies in.

    What a daemon reads is copies from others (the publisher: its node's messages), what it writes copies to others,
    and each message once to its node.
    """
    count = few.num_messages
    wire = few.usages[1].read_bytes / count
    publishes, publishes_to_more = (each.usages[0].cpu_s / count for each in (few, some))
    send = max(0.0, (publishes_to_more - publishes) / (SOME - FEW))
    first = few.usages[1].cpu_s / count
    others = some.usages[1:]
    duplicates = mean(other.read_bytes for other in others) / count / wire - 1
    sends = mean(other.written_bytes - count * size for other in others) / count / wire
    duplicate = max(0.0, (mean(other.cpu_s for other in others) / count - first - sends * send) / duplicates)
    take_in = max(0.0, (some.own.cpu_s - few.own.cpu_s) / count / (SOME - FEW))
    return _Message(take_in, first, duplicate, send, wire)


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
            await directory.add_peers((other.peer_id for other in members if other is not member), first=True)
        few = await _reading(directories, members, 0)
        expires_at = time.time() + RECORD_LIFE_S
        for index in range(num_records):
            identity = Identity.generate()
            await directories[index % len(directories)].announce(identity.peer_id, *_peer_record(identity, expires_at))
        return (await _reading(directories, members, num_records) - few) / num_records


async def _reading(directories: Sequence[PeerDirectory], members: Sequence[Member], num_records: int) -> float:
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
    """What real daemons did with a load."""

    copies: float
    """A daemon received of each message of another."""
    fraction: float
    latencies_s: list[float]
    cpu: float
    """CPU seconds per second, of one daemon."""


async def run_daemons(num_nodes: int, load: Load) -> Real:
    """Share messages among daemons that are all connected, each publishing in turn."""
    async with daemons(num_nodes) as members:
        await share(members, members, SMALL, 10.0, 2 * num_nodes)
        done = await share(members, members, load.record_bytes, load.groups_per_s, load.num_groups)
        latencies = latencies_s(members, members, done)
    # What a daemon reads is its node's own messages, and copies from others with some framing.
    read = sum(each.read_bytes for each in done.usages) - load.num_groups * load.record_bytes
    pairs = load.num_groups * (num_nodes - 1)
    framed = load.record_bytes + FRAMING_BYTES
    cpu = sum(each.cpu_s for each in done.usages) / num_nodes / load.num_groups * load.groups_per_s
    return Real(read / framed / pairs, len(latencies) / pairs, latencies, cpu)
