"""Real daemons on loopback, with the code by which nodes follow each other: where the model's costs come from.

This one process drives them all; so there is a node for each daemon without models, rounds, repair and directory.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
from msgspec.structs import replace

from benchmarks.common.groups import benchmark_manifest, chars_for, make_group
from swarm.net.config import NetworkSettings
from swarm.net.hivemind.daemon import Daemon, quiet_hivemind
from swarm.net.membership.following import FETCHED_AT_ONCE, Following
from swarm.net.membership.member import Member, Profile
from swarm.net.records.feed import FOLLOWED_AT_ONCE
from swarm.net.records.identity import Identity
from swarm.net.records.wire import SealedManifest, seal
from swarm.net.runtime import AsyncioRuntime
from swarm.net.trust.accounts import SafetySettings
from swarm.types import VerifiedGroup

LISTEN = "/ip4/127.0.0.1/tcp/0"
SETTLE_S = 5.0
QUIET_S = 4.0
"""Longer than a request for named records may take."""
UNLIMITED = SafetySettings(newcomer_groups_per_min=10**6, newcomer_bytes_per_min=10**9)
"""So that records of strangers are taken as fast as they are handed on."""
SOMEBODY = "somebody"
"""The author of records that a publisher passes on; nobody here."""


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
    """CPU seconds and bytes of a process: on Linux, where the kernel counts nanoseconds."""
    nanoseconds, io = 0, process.io_counters()
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        with suppress(FileNotFoundError):
            nanoseconds += int((thread / "schedstat").read_text().split()[0])
    return Usage(1e-9 * nanoseconds, io.read_chars, io.write_chars)


class Node:
    """One daemon, and the member of a run behind it."""

    def __init__(self, identity: Identity, daemon: Daemon, process: psutil.Process, manifest: SealedManifest) -> None:
        """Connected with nobody."""
        self.daemon = daemon
        self.process = process
        self.member = Member(NetworkSettings(safety=UNLIMITED), identity, Profile(), manifest)
        self._following = Following(self.member, daemon.stream, AsyncioRuntime())
        self._loops: list[asyncio.Task[None]] = []
        self.arrivals: dict[int, float] = {}
        """Number of each group of others to the time at which it was heard."""

    async def start(self) -> None:
        """Answer requests."""
        for protocol in self.member.answering.handlers:
            await self.daemon.answer(protocol, partial(self.member.answering.handle, protocol))

    async def follow(self) -> None:
        """Greet those that are connected, and follow them."""
        connected, greetings = await self.daemon.connected(), self.member.greetings

        def meet() -> None:
            self.member.peers.update(connected, greetings.members())
            self._following.peers_changed()

        greetings.on_change = meet
        meet()
        following = self._following
        loops = [following.greet, *[following.follow] * FOLLOWED_AT_ONCE, *[following.fetch] * FETCHED_AT_ONCE]
        self._loops = [asyncio.create_task(loop()) for loop in loops]

    def publish(self, record: bytes, *, as_own: bool) -> None:
        """Put a record into the feed: this node's, or one that somebody else handed over."""
        records = self.member.records
        records.store.add(record, owner=self.member.identity.peer_id)
        records.feed.add(record, *(() if as_own else (SOMEBODY,)), is_own=as_own)

    def collect(self) -> None:
        """Note the groups that have arrived."""
        inbox = self.member.records.inbox
        while (arrival := inbox.take()) is not None:
            if isinstance(arrival, VerifiedGroup):
                self.arrivals.setdefault(arrival.group.sequence, arrival.heard_at)

    async def stop(self) -> None:
        """End loops and daemon."""
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self.daemon.stop()


@dataclass
class Round:
    """What some records did to the nodes."""

    num_records: int
    seconds: float
    published: list[float]
    usages: list[Usage]
    """By daemon; the publisher is the first, if there is only one."""
    own: Usage
    """Of this process, which runs all nodes."""


@asynccontextmanager
async def daemons(count: int, dials: int | None = None, *, seed: int = 0) -> AsyncIterator[list[Node]]:
    """Nodes connected with all others, or with `dials` random earlier ones each, all following one another."""
    quiet_hivemind()
    manifest = benchmark_manifest(Identity.generate())
    nodes: list[Node] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for index in range(count):
                nodes.append(await _start(Path(folder) / f"{index}.key", manifest))
        draw = random.Random(seed)
        for index, node in enumerate(nodes):
            earlier = nodes[:index]
            for other in earlier if dials is None else draw.sample(earlier, min(dials, index)):
                await node.daemon.connect(other.member.identity.peer_id, await other.daemon.addresses())
        await asyncio.sleep(SETTLE_S)
        for node in nodes:
            await node.follow()
        await asyncio.sleep(SETTLE_S)
        yield nodes
    finally:
        await asyncio.gather(*(node.stop() for node in nodes))


async def _start(key: Path, manifest: SealedManifest) -> Node:
    identity = Identity.load_or_create(key)
    before = set(psutil.Process().children())
    daemon = await Daemon.start(listen=(LISTEN,), identity=key)
    (process,) = set(psutil.Process().children()) - before
    node = Node(identity, daemon, process, manifest)
    await node.start()
    return node


def groups(authors: Sequence[Node], size_bytes: int, count: int, *, foreign: bool = False) -> list[bytes]:
    """Sealed groups of about this size, by the authors in turn; `foreign`: by somebody who is not there."""
    somebody, found = Identity.generate(), []
    num_chars = chars_for(size_bytes)
    for number in range(count):
        member = authors[number % len(authors)].member
        identity = somebody if foreign else member.identity
        assert member.run.manifest is not None
        run_id = member.run.manifest.run_id
        group = replace(make_group(number, num_chars), run_id=run_id, peer_id=identity.peer_id, created_at=time.time())
        found.append(seal(identity, run_id, "group", group))
    return found


async def share(
    nodes: Sequence[Node], publishers: Sequence[Node], records: Sequence[bytes], per_s: float, *, as_own: bool = True
) -> Round:
    """Publish records, by the publishers in turn, evenly in time; wait until they have settled."""
    published = []
    for node in nodes:
        node.arrivals.clear()
    own, before = usage(psutil.Process()), [usage(node.process) for node in nodes]
    began = time.time()
    for number, record in enumerate(records):
        await asyncio.sleep(max(0.0, began + number / per_s - time.time()))
        published.append(time.time())
        publishers[number % len(publishers)].publish(record, as_own=as_own)
        for node in nodes:
            node.collect()
    await _settle(nodes)
    return Round(
        len(records),
        time.time() - began,
        published,
        [usage(node.process).since(old) for node, old in zip(nodes, before, strict=True)],
        usage(psutil.Process()).since(own),
    )


async def _settle(nodes: Sequence[Node]) -> None:
    """Wait until nothing more arrives."""
    num_before = -1
    while (num_arrived := sum(len(node.arrivals) for node in nodes)) > num_before:
        num_before = num_arrived
        await asyncio.sleep(QUIET_S)
        for node in nodes:
            node.collect()


async def idle(nodes: Sequence[Node], seconds: float) -> Round:
    """What they use when nothing is shared."""
    before, own = [usage(node.process) for node in nodes], usage(psutil.Process())
    await asyncio.sleep(seconds)
    used = [usage(node.process).since(old) for node, old in zip(nodes, before, strict=True)]
    return Round(0, seconds, [], used, usage(psutil.Process()).since(own))


def latencies_s(nodes: Sequence[Node], publishers: Sequence[Node], done: Round) -> list[float]:
    """From publication to the inbox, of every group at every node but its publisher, in order of size."""
    return sorted(
        heard_at - done.published[number]
        for node in nodes
        for number, heard_at in node.arrivals.items()
        if publishers[number % len(publishers)] is not node
    )
