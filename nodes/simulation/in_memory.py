"""All nodes of a simulation in one process, in turn: no network, no waiting, reproducible."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from nodes import exits
from nodes.boot.directory import IDENTITY_FILE
from nodes.boot.manifest import found_run
from nodes.roles.peer import PeerNode
from nodes.roles.runtime import NodeParts
from nodes.simulation.configs import Member
from nodes.stop import Stop, StopRequest
from swarm.config import NodeConfig, load_config
from swarm.environments.tools.custom import with_custom_tools
from swarm.environments.verification.inline import InlineVerifier
from swarm.errors import ConfigError, Interrupted
from swarm.machine import return_free_memory
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.net.records.wire import Limits, SealedManifest
from swarm.protocols import TaskVerifier
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE

Clock = Callable[[], float]
ROUND_S = 30.0
"""A turn takes a second of the nodes' clock, but as many groups may be offered in it as in a real round of this."""
Guest = Callable[[], None]
"""Someone in the run who is no node, such as an attacker: called once a turn, before the nodes."""


class Turns:
    """The nodes' clock: each turn takes a second, so that no rate or age depends on how fast the machine is."""

    def __init__(self, taken: int = 0, clock: float | None = None) -> None:
        """After `taken` turns the clock says `clock`, by default the time."""
        self._began = (int(time.time()) if clock is None else clock) - taken
        self.taken = taken

    def __call__(self) -> float:
        """Unix seconds."""
        return float(self._began + self.taken)


class MemoryRun:
    """One run: its nodes, the first of which founds it, and its guests."""

    def __init__(self, members: Sequence[Member], stop: Stop, clock: Clock) -> None:
        """Raises `ConfigError` for nodes that cannot take turns."""
        ahead = max(member.config.generation.max_staleness for member in members)
        if ahead:
            raise ConfigError(
                f"generation.max_staleness must be 0 when all peers share one process, got {ahead}: they take turns"
            )
        self.hub = MemoryHub()
        self.guests: list[Guest] = []
        self._joined: list[tuple[PeerNode, int]] = []
        """Each with the turns before it."""
        self._waiting = deque(sorted(members, key=lambda member: member.joins_at))
        self._stop = stop
        self._clock = clock
        self._run: SealedManifest | None = None
        self._verifiers: dict[str, TaskVerifier] = {}

    @property
    def nodes(self) -> list[PeerNode]:
        """Those that have joined."""
        return [node for node, _ in self._joined]

    @property
    def done(self) -> bool:
        """Whether every node has joined and finished its rounds."""
        return not self._waiting and all(node.done for node in self.nodes)

    def take_turn(self, number: int) -> None:
        """Let in who joins now; then guests and nodes take a step each. Raises `Interrupted`."""
        while self._waiting and self._waiting[0].joins_at <= number:
            member = self._waiting.popleft()
            node = self._join(member.config)
            self._joined.append((node, member.joins_at))
            node.begin()
        for guest in self.guests:
            guest()
        for node, joined_at in self._joined:
            # After a stop within a turn, nodes that have taken it wait for the others. A paused one makes no round: all
            # wait for it, since a pause must not change what a swarm learns.
            while not node.done and joined_at + node.round <= number:
                node.step()
                # Or every node keeps what its update took: a fifth of a swarm's memory with SmolLM2.
                return_free_memory()

    def end(self) -> None:
        """End all nodes, each as done or interrupted."""
        for node in self.nodes:
            node.end("done" if node.done else "interrupted")

    def _join(self, config: NodeConfig) -> PeerNode:
        config.out.mkdir(parents=True, exist_ok=True)
        identity = Identity.load_or_create(config.out / IDENTITY_FILE)
        self._run = self._run or found_run(config, identity)
        limits = Limits(config.network.max_record_bytes, config.network.max_completion_chars)
        transport = MemoryTransport(
            self.hub,
            identity.peer_id,
            self._run,
            limits=limits,
            offers_per_s=ROUND_S * config.network.offers_per_s,
            clock=self._clock,
        )
        transport.start()
        return PeerNode(NodeParts(config, identity, transport, self._verifier(config), self._stop, clock=self._clock))

    def _verifier(self, config: NodeConfig) -> TaskVerifier:
        """One for all nodes with the same tasks: setting them up takes time."""
        key = repr(config.tasks)
        if key not in self._verifiers:
            if any(part.rater for task in config.tasks for part in task.rewards):
                raise ConfigError(
                    "a swarm in one process asks nobody: use tasks without rewards of the kinds judge and http"
                )
            self._verifiers[key] = with_custom_tools(InlineVerifier(config.tasks), config.tasks)
        return self._verifiers[key]


def take_turns(runs: Sequence[MemoryRun], turns: Turns, stop: Stop) -> None:
    """Run all nodes to their end, or until `stop`, and end them; `turns` is the clock of all runs."""
    try:
        while not stop() and not all(run.done for run in runs):
            for run in runs:
                run.take_turn(turns.taken)
            turns.taken += 1
    except Interrupted:
        pass  # `stop` says so too
    for run in runs:
        run.end()


def simulate_in_memory(
    file: Path, out: Path, num_peers: int, first_seed: int, control: Path | None, supervised: bool
) -> int:
    """Run `num_peers` peers round by round, and one alone if `control` configures it. Returns the exit code."""
    stop = StopRequest(supervised)
    folders = [out / f"peer-{k + 1}" for k in range(num_peers)]
    turns = _turns(folders)
    runs = [MemoryRun(_members(file, folders, first_seed), stop, turns)]
    if control is not None:
        runs.append(MemoryRun(_members(control, [out / control.stem], first_seed), stop, turns))
    take_turns(runs, turns, stop)
    return exits.INTERRUPTED if stop() else exits.DONE


def _turns(folders: Sequence[Path]) -> Turns:
    """From where the nodes in these folders were when they ended; those that are ahead wait for the others."""
    rounds = [max(PeerHistory.read(folder / METRICS_FILE).rounds, default=0) for folder in folders]
    return Turns(min(rounds), int(time.time()) + max(rounds))


def _members(file: Path, folders: Sequence[Path], first_seed: int) -> list[Member]:
    base = load_config(file, None, os.environ).config
    return [
        Member(base.model_copy(update={"name": folder.name, "out": folder, "seed": first_seed + k}))
        for k, folder in enumerate(folders)
    ]
