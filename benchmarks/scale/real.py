"""Real daemons on loopback, all of them driven by this one process: what the model's costs and claims come from."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import psutil

from benchmarks.common.own_feed import OwnFeed
from swarm.net.hivemind.daemon.process import Daemon, quiet_hivemind
from swarm.net.membership.following import FOLLOWED_AT_ONCE
from swarm.net.records.record_store import RecordStore

LISTEN = "/ip4/127.0.0.1/tcp/0"
RUN_ID = "benchmark"
SETTLE_S = 5.0
NUMBER_BYTES = 8


@dataclass(frozen=True)
class Usage:
    """What a process has used so far."""

    cpu_s: float
    read_bytes: int
    """Through sockets and files alike, as the kernel counts them."""
    written_bytes: int

    def since(self, before: Usage) -> Usage:
        """The difference."""
        return Usage(
            self.cpu_s - before.cpu_s, self.read_bytes - before.read_bytes, self.written_bytes - before.written_bytes
        )


def usage(process: psutil.Process) -> Usage:
    """CPU seconds and bytes of a process."""
    times, io = process.cpu_times(), process.io_counters()
    return Usage(times.user + times.system, io.read_chars, io.write_chars)


@dataclass
class Member:
    """One daemon."""

    daemon: Daemon
    process: psutil.Process
    peer_id: str
    addresses: tuple[str, ...]
    feed: OwnFeed
    arrivals: dict[int, float] = field(default_factory=dict)
    """Message number to the time of its first arrival."""


@dataclass
class Round:
    """What some messages did to the daemons."""

    num_messages: int
    seconds: float
    published: list[float]
    usages: list[Usage]
    """By daemon; the publisher is the first, if there is only one."""
    own: Usage
    """Of this process, which reads for all of them."""


@asynccontextmanager
async def daemons(count: int, dials: int | None = None, *, seed: int = 0) -> AsyncIterator[list[Member]]:
    """Daemons connected with all others, or with `dials` random earlier ones each, all following one another."""
    quiet_hivemind()
    members: list[Member] = []
    listeners: list[asyncio.Task[None]] = []
    try:
        for _ in range(count):
            members.append(await _start())
        draw = random.Random(seed)
        for index, member in enumerate(members):
            earlier = members[:index]
            for other in earlier if dials is None else draw.sample(earlier, min(dials, index)):
                await member.daemon.connect(other.peer_id, other.addresses)
        await asyncio.sleep(SETTLE_S)
        for member in members:
            listeners += [asyncio.create_task(reading) for reading in await _listen(member)]
        await asyncio.sleep(SETTLE_S)
        yield members
    finally:
        for listener in listeners:
            listener.cancel()
        await asyncio.gather(*(member.daemon.stop() for member in members))


async def _start() -> Member:
    before = set(psutil.Process().children())
    daemon = await Daemon.start(listen=(LISTEN,))
    (process,) = set(psutil.Process().children()) - before
    feed = OwnFeed(daemon)
    await feed.take_part(RUN_ID)
    return Member(daemon, process, daemon.p2p.peer_id.to_base58(), await daemon.addresses(), feed)


async def _listen(member: Member) -> list[Coroutine[None, None, None]]:
    store = RecordStore(1_024, 2**26, 120.0)

    def hear(sender: str, record: bytes) -> None:
        # What a node does with a record on its network thread, short of the mailbox.
        if store.add(record):
            member.arrivals.setdefault(int.from_bytes(record[:NUMBER_BYTES], "big"), time.perf_counter())
            member.feed.publish(record, sender)

    connected = sorted(await member.daemon.connected())
    followed = random.sample(connected, min(FOLLOWED_AT_ONCE, len(connected)))
    return [member.feed.read(peer_id, hear, lambda name: not store.has_seen(name)) for peer_id in followed]


async def share(
    members: Sequence[Member], publishers: Sequence[Member], size_bytes: int, per_s: float, count: int
) -> Round:
    """Publish messages, by the publishers in turn, evenly in time; wait until they have settled."""
    for member in members:
        member.arrivals.clear()
    noise, published = random.randbytes(size_bytes), []
    own, before = usage(psutil.Process()), [usage(member.process) for member in members]
    began = time.perf_counter()
    for number in range(count):
        await asyncio.sleep(max(0.0, began + number / per_s - time.perf_counter()))
        published.append(time.perf_counter())
        message = number.to_bytes(NUMBER_BYTES, "big") + noise[NUMBER_BYTES:]
        publishers[number % len(publishers)].feed.publish(message)
    await asyncio.sleep(1.0)
    return Round(
        count,
        time.perf_counter() - began,
        published,
        [usage(member.process).since(old) for member, old in zip(members, before, strict=True)],
        usage(psutil.Process()).since(own),
    )


async def idle(members: Sequence[Member], seconds: float) -> list[Usage]:
    """What the daemons use when nothing is shared."""
    before = [usage(member.process) for member in members]
    await asyncio.sleep(seconds)
    return [usage(member.process).since(old) for member, old in zip(members, before, strict=True)]


def latencies_s(members: Sequence[Member], publishers: Sequence[Member], done: Round) -> list[float]:
    """From publication to arrival, of every message at every daemon but its publisher's, in order of size."""
    return sorted(
        arrived - done.published[number]
        for member in members
        for number, arrived in member.arrivals.items()
        if publishers[number % len(publishers)] is not member
    )
