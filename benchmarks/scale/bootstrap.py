"""A crowd at a real bootstrap: what it does to the bootstrap, to members, and to who wants to join."""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import psutil

from benchmarks.common.children import ROOT, Child, ChildProcesses
from benchmarks.network.node import Spec as NodeSpec
from benchmarks.scale.crowd import Spec as CrowdSpec
from benchmarks.scale.real import usage
from swarm.errors import PeerUnreachable
from swarm.net.addresses.dial import by_peer
from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.membership.dialling import CrowdedBootstraps

LOOK_EVERY_S = 1.0
ASK_EVERY_S = 20.0
JOIN_TIMEOUT_S = 60.0
NUM_MEMBERS = 2
DAEMON = "p2pd"
KEPT = 256
"""Connections that the daemon keeps when it closes others."""
DAY_S = 86_400.0
SAMPLE = 100
"""Nodes with pauses of their own."""


@dataclass(frozen=True)
class Setting:
    """A crowd, and how long it is looked at."""

    num_peers: int
    arrive_s: float
    """Time in which all arrive, evenly."""
    settle_s: float
    """From the first arrival until the figures count."""
    window_s: float


@dataclass
class Seen:
    """What was seen within the window."""

    redials_per_s: float = 0.0
    most_redials: int = 0
    """Within one second."""
    failures: int = 0
    connections: list[int] = field(default_factory=list)
    """Of the crowd, at each look."""
    handshakes_s: list[float] = field(default_factory=list)
    held_s: list[float] = field(default_factory=list)
    """How long the bootstrap kept the connections that it closed, also those before the window."""
    daemon_cpu: float = 0.0
    """CPU seconds per second of the bootstrap's daemon."""
    node_cpu: float = 0.0
    """The same of its other processes."""
    daemon_bytes: int = 0
    """The most."""
    daemon_bytes_alone: int = 0
    """Before the crowd came."""
    descriptors: int = 0
    """The most, of the daemon."""
    cpu_per_arrival_s: float = 0.0
    """CPU seconds of the daemon while the crowd arrived, for each peer of it."""
    manifests_s: list[float] = field(default_factory=list)
    """How long a stranger took to learn the run, each time with a daemon of its own."""
    unanswered: int = 0
    members_dialled: list[int] = field(default_factory=list)
    """By member: its connections to the bootstrap."""
    joined_s: float | None = None
    """How long a newcomer took to be connected with the bootstrap and all real members."""


def look_at(setting: Setting) -> Seen:
    """Run one crowd at a new bootstrap. Raises `ChildFailed`."""
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder, ChildProcesses(Path(folder)) as processes:
        return _Scene(processes).watch(setting)


class _Scene:
    """The bootstrap, two real members, and the crowd."""

    def __init__(self, processes: ChildProcesses) -> None:
        """Start the bootstrap and the members, without the crowd."""
        self._processes = processes
        self._bootstrap = self._node("bootstrap", founder=True)
        self._bootstrap.tell("start", bootstrap=[])
        addresses = cast(list[str], self._bootstrap.wait_for("ready")["addresses"])
        self._address = next(address for address in addresses if "/127.0.0.1/" in address)
        self._members = [self._node(f"member-{index}") for index in range(NUM_MEMBERS)]
        for member in self._members:
            self._join(member)
        self._ports: list[set[int]] = [set() for _ in self._members]

    def _node(self, name: str, *, founder: bool = False) -> Child:
        spec = NodeSpec(str(self._processes.folder), name, founder=founder)
        arguments = [sys.executable, "-m", "benchmarks.network.node", spec.as_argument()]
        node = self._processes.start(name, arguments, {"PYTHONPATH": str(ROOT)})
        node.wait_for("warm")
        return node

    def _join(self, node: Child) -> None:
        node.tell("start", bootstrap=[self._address])
        node.wait_for("ready")

    def watch(self, setting: Setting) -> Seen:
        """Let the crowd come, and look."""
        seen = Seen()
        daemon = _daemon(self._bootstrap)
        manifest = HivemindTransport.fetch_manifest(by_peer([self._address]), JOIN_TIMEOUT_S, None).manifest
        spec = CrowdSpec(self._address, manifest.run_id, setting.num_peers, setting.num_peers / setting.arrive_s)
        seen.daemon_bytes_alone = daemon.memory_info().rss
        before, began = usage(daemon).cpu_s, time.monotonic()
        arguments = [sys.executable, "-m", "benchmarks.scale.crowd", spec.as_argument()]
        crowd = self._processes.start("crowd", arguments, {"PYTHONPATH": str(ROOT)})
        while cast(int, crowd.wait_for("crowd")["arrived"]) < setting.num_peers:
            pass
        seen.cpu_per_arrival_s = (usage(daemon).cpu_s - before) / setting.num_peers
        self._look_until(began + setting.settle_s, seen, daemon)
        first = len(crowd.said("crowd"))
        own, whole, since = usage(daemon).cpu_s, self._bootstrap.cpu_s(), time.monotonic()
        self._look_until(since + setting.window_s, seen, daemon, asks=True)
        seconds = time.monotonic() - since
        seen.daemon_cpu = (usage(daemon).cpu_s - own) / seconds
        seen.node_cpu = (self._bootstrap.cpu_s() - whole) / seconds - seen.daemon_cpu
        self._count(crowd, first, seconds, seen)
        seen.members_dialled = [len(ports) for ports in self._ports]
        seen.joined_s = self._newcomer()
        return seen

    def _look_until(self, end: float, seen: Seen, daemon: psutil.Process, *, asks: bool = False) -> None:
        ask_at = time.monotonic()
        port = int(self._address.split("/")[4])
        while time.monotonic() < end:
            seen.daemon_bytes = max(seen.daemon_bytes, daemon.memory_info().rss)
            seen.descriptors = max(seen.descriptors, daemon.num_fds())
            for member, ports in zip(self._members, self._ports, strict=True):
                found = _daemon(member).net_connections()
                ports |= {each.laddr.port for each in found if each.raddr and each.raddr.port == port}
            if asks and time.monotonic() >= ask_at:
                ask_at += ASK_EVERY_S
                self._ask(seen)
            time.sleep(LOOK_EVERY_S)

    def _ask(self, seen: Seen) -> None:
        began = time.monotonic()
        try:
            HivemindTransport.fetch_manifest(by_peer([self._address]), JOIN_TIMEOUT_S, None)
            seen.manifests_s.append(time.monotonic() - began)
        except PeerUnreachable:
            seen.unanswered += 1

    def _count(self, crowd: Child, first: int, seconds: float, seen: Seen) -> None:
        reports = crowd.said("crowd")
        inside = reports[first:]
        by_look = [cast(list[float], report["handshakes_s"]) for report in inside]
        seen.handshakes_s = [each for durations in by_look for each in durations]
        seen.redials_per_s = len(seen.handshakes_s) / seconds
        seen.most_redials = max(map(len, by_look), default=0)
        seen.failures = cast(int, reports[-1]["failures"])
        seen.connections = [cast(int, report["connected"]) for report in inside]
        seen.held_s = [each for report in reports for each in cast(list[float], report["held_s"])]

    def _newcomer(self) -> float | None:
        newcomer = self._node("newcomer")
        began = time.monotonic()
        self._join(newcomer)
        while time.monotonic() - began < JOIN_TIMEOUT_S:
            if cast(int, newcomer.ask("status")["connected"]) > NUM_MEMBERS:
                return time.monotonic() - began
            time.sleep(0.1)
        return None


def _daemon(node: Child) -> psutil.Process:
    return next(process for process in node.tree() if process.name() == DAEMON)


@dataclass(frozen=True)
class Steady:
    """A crowded bootstrap in the long run."""

    redials_per_s: float
    connections: float


def steady(num_members: int, held_s: float) -> Steady:
    """Computed with the code that nodes dial by: connections last `held_s`, but the daemon keeps `KEPT` for good."""
    dials = sum(_dials(held_s) for _ in range(SAMPLE))
    per_s = max(0, num_members - KEPT) * dials / SAMPLE / DAY_S
    return Steady(per_s, min(num_members, KEPT) + per_s * held_s)


def _dials(held_s: float) -> int:
    """Of one node in a day that does without the bootstrap."""
    crowded, nobody, now, dials = CrowdedBootstraps(), frozenset[str](), 0.0, 0
    while now < DAY_S:
        crowded.judge([DAEMON], frozenset([DAEMON]), nobody, now)
        now, dials = now + held_s, dials + 1
        crowded.judge([DAEMON], nobody, nobody, now)
        now += crowded.wait_s(DAEMON, now)
    return dials
