"""N nodes on loopback, each a process: ours or the public peer's, with the same commands."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from benchmarks.common.children import ROOT, Child, ChildProcesses, until
from benchmarks.network.delivery import Life, NodeLog
from benchmarks.network.node import Spec

Kind = Literal["ours", "learner", "peer", "peer-barrier"]
"""`ours` ends at the exchange, `learner` goes on to the mix; `peer` is the public peer in its default mode; with the
barrier each round waits for all."""
MODULES = {"ours": "benchmarks.network.node", "learner": "benchmarks.network.learning_node"}
PUBLIC_PEER = Path(__file__).parent / "baseline" / "genrl_node.py"
STARTED_AT_ONCE = 8
"""Processes that import concurrently: on few cores, many at once would time out."""
SETTLED_S = 2.0
"""Time for gossip's heartbeat."""
SEQUENCES_A_LIFE = 1_000_000


@dataclass(frozen=True)
class Setting:
    """The kind and number of nodes, and their network."""

    kind: Kind
    count: int
    loss: float = 0.0
    delay_s: float = 0.0
    poll_s: float = 0.0
    peer_python: Path | None = None
    num_patient: int = 0
    """Number of learners with long rounds."""
    wants: float = 0.0
    """Fraction of the groups on offer that a node fetches; 0: nodes send theirs to everybody."""


@dataclass
class Member:
    """One node over all its processes."""

    spec: Spec
    children: list[Child] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)

    @property
    def child(self) -> Child:
        """Its present process."""
        return self.children[-1]


class Fleet:
    """N members; the first brings the run, or the first node of the DHT, and is never killed by a measurement."""

    def __init__(self, processes: ChildProcesses, setting: Setting, name: str) -> None:
        """Start every process and wait until all have finished importing; none has joined the swarm yet."""
        self._processes = processes
        self._setting = setting
        folder = processes.folder / name
        folder.mkdir(parents=True)
        self.members = [
            Member(
                Spec(
                    str(folder),
                    f"{name}-{index}",
                    founder=index == 0,
                    loss=setting.loss,
                    delay_s=setting.delay_s,
                    poll_s=setting.poll_s,
                    patient=index >= setting.count - setting.num_patient,
                    wants=setting.wants,
                )
            )
            for index in range(setting.count)
        ]
        for first in range(0, len(self.members), STARTED_AT_ONCE):
            few = self.members[first : first + STARTED_AT_ONCE]
            for member in few:
                self._spawn(member)
            for member in few:
                member.child.wait_for("warm")
        self._bootstrap: list[str] = []

    def _spawn(self, member: Member) -> None:
        spec = replace(member.spec, first_sequence=len(member.children) * SEQUENCES_A_LIFE)
        setting = self._setting
        if setting.kind in MODULES:
            arguments = [sys.executable, "-m", MODULES[setting.kind], spec.as_argument()]
            environment = {"PYTHONPATH": str(ROOT)}
        else:
            world_size = setting.count if setting.kind == "peer-barrier" else 1
            arguments = [
                str(setting.peer_python),
                str(PUBLIC_PEER),
                spec.as_argument(),
            ]
            environment = {"PYTHONPATH": "", "HIVEMIND_WORLD_SIZE": str(world_size)}
        member.children.append(self._processes.start(f"{spec.name}-{len(member.children)}", arguments, environment))

    @property
    def first(self) -> Member:
        """The member that others join through."""
        return self.members[0]

    def start(self, offsets_s: Sequence[float] = (), publish: tuple[int, float] | None = None) -> None:
        """Let members join, the first now and each other one at its offset, publishing (size, interval) at once."""
        self.first.child.tell("start", bootstrap=[])
        ready = self.first.child.wait_for("ready")
        addresses = ready["addresses"]
        assert isinstance(addresses, list)
        self._bootstrap = [address for address in addresses if "/127.0.0.1/" in address]
        began = time.monotonic()
        offsets = list(offsets_s) or [0.0] * len(self.members)
        for offset, member in sorted(zip(offsets, self.members, strict=True), key=lambda pair: pair[0]):
            time.sleep(max(0.0, began + offset - time.monotonic()))
            if member is not self.first:
                member.child.tell("start", bootstrap=self._bootstrap)
            if publish:
                member.child.tell("publish", size_bytes=publish[0], every_s=publish[1])
        for member in self.members[1:]:
            member.child.wait_for("ready")

    def settle(self, timeout_s: float = 30.0) -> bool:
        """Wait until every node of ours sees all others in the run, and gossip has had its heartbeat."""
        if self._setting.kind not in MODULES:
            time.sleep(SETTLED_S)
            return True

        def all_connected() -> bool:
            others = len(self.members) - 1
            return all(int(str(member.child.ask("status")["connected"])) >= others for member in self.members)

        met = until(all_connected, timeout_s, 0.5)
        time.sleep(SETTLED_S)
        return met

    def publish(self, size_bytes: int, every_s: float, members: Sequence[Member] | None = None) -> None:
        """Let members publish from now on."""
        for member in self.members if members is None else members:
            member.child.tell("publish", size_bytes=size_bytes, every_s=every_s)

    def quiet(self) -> None:
        """Let all of them stop publishing."""
        for member in self.members:
            member.child.tell("quiet")

    def kill(self, member: Member) -> None:
        """SIGKILL to the node and its network daemon."""
        member.child.kill()
        member.ended.append(time.time())

    def restart(self, member: Member, publish: tuple[int, float] | None = None) -> None:
        """A new process with the same identity."""
        self._spawn(member)
        member.child.wait_for("warm")
        member.child.tell("start", bootstrap=self._bootstrap)
        if publish:
            member.child.tell("publish", size_bytes=publish[0], every_s=publish[1])

    def logs(self) -> list[NodeLog]:
        """Every member's records so far."""
        return [_log_of(member) for member in self.members]

    def end(self) -> None:
        """End every process now instead of with the processes."""
        for member in self.members:
            member.child.end()


def _log_of(member: Member) -> NodeLog:
    log = NodeLog("")
    for index, child in enumerate(member.children):
        for ready in child.said("ready"):
            log.peer_id = str(ready["peer_id"])
            log.lives.append(Life(float(str(ready["at"])), member.ended[index] if index < len(member.ended) else None))
        for event in child.said("published"):
            log.published[int(str(event["sequence"]))] = float(str(event["at"]))
        for event in child.said("got"):
            groups = event["groups"]
            assert isinstance(groups, list)
            for peer_id, sequence in groups:
                log.got.setdefault((peer_id, sequence), float(str(event["at"])))
    return log
