"""Real `swarm` processes on loopback, and strangers that attack them."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.common.children import ROOT, Child, ChildFailed, ChildProcesses, until
from benchmarks.common.service_attacks import LEARNER_ATTACKS, ServiceAttacks
from nodes.simulation.cell import CpuShares
from swarm.errors import SwarmError
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE
from swarm.types import Completion, PolicyId, RolloutGroup, Sampling
from tests.attacks.stranger import Stranger

LOOPBACK = ("--network.listen=/ip4/127.0.0.1/tcp/0", "--network.nat_port_map=false", "--evaluation.num_questions=0")
WIDE_COMPLETIONS = 120
WIDE_CHARS = 65_000
START_TIMEOUT_S = 180.0
WARM_ROUNDS = 20
LOOK_EVERY_S = 0.5


class Nodes:
    """`swarm` processes on loopback."""

    def __init__(self, processes: ChildProcesses, shares: CpuShares | None) -> None:
        """None yet."""
        self._processes = processes
        self._shares = shares
        self._commands: list[list[str]] = []
        self._cores: list[float] = []
        self.children: list[Child] = []
        self.addresses: list[str] = []

    def start(self, role: str, *arguments: str, cores: float) -> str:
        """Start another node with its share of the processor; returns its address."""
        index = len(self.children)
        out = self._processes.folder / f"{role}-{index}"
        self._commands.append([sys.executable, "-m", "nodes.cli", role, *arguments, "--out", str(out), *LOOPBACK])
        self._cores.append(cores)
        self.children.append(self._started(index, out.name))
        file = out / "multiaddrs"
        if not until(file.exists, START_TIMEOUT_S):
            raise ChildFailed(f"{out.name} printed no address: {self.children[-1].last_words()}")
        self.addresses.append(file.read_text().split()[0])
        return self.addresses[-1]

    def restart(self, index: int) -> None:
        """Kill a node with its descendants, like a power failure, and start it again in its directory."""
        self.children[index].end()
        self._processes.children.remove(self.children[index])
        self.children[index] = self._started(index, self.children[index].name)

    def out(self, index: int) -> Path:
        """The directory of a node."""
        return self._processes.folder / self.children[index].name

    def temporary(self, index: int) -> Path:
        """Where a node has its temporary files."""
        return self._temporary(self.children[index].name)

    def _temporary(self, name: str) -> Path:
        return self._processes.folder / f"{name}.tmp"

    def _started(self, index: int, name: str) -> Child:
        temporary = self._temporary(name)
        temporary.mkdir(exist_ok=True)
        environment = {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
        child = self._processes.start(name, self._commands[index], environment)
        if self._shares is not None:
            self._shares.limit(child.process.pid, self._cores[index])
        return child

    def rounds(self, index: int) -> int:
        """Rounds, or steps, that a node has finished. Raises `ChildFailed` when it has ended."""
        child = self.children[index]
        if not child.running:
            raise ChildFailed(f"{child.name} ended: {child.last_words()}")
        latest = PeerHistory.read(self.out(index) / METRICS_FILE).latest
        return latest.round if latest else 0

    def warm_up(self, index: int) -> None:
        """Wait until a node makes progress. Raises `ChildFailed`."""
        if not until(lambda: self.rounds(index) >= WARM_ROUNDS, START_TIMEOUT_S, LOOK_EVERY_S):
            raise ChildFailed(f"{self.children[index].name} makes no progress: {self.children[index].last_words()}")

    def pace(self, index: int, seconds: float) -> float:
        """Measure the rounds per minute of a node from now on."""
        began, before = time.monotonic(), self.rounds(index)
        time.sleep(seconds)
        return 60 * (self.rounds(index) - before) / (time.monotonic() - began)


class Attackers:
    """Strangers that attack a node until the block ends, each in a thread, which calls `act` every `every_s`.

    `arrive`, if given, is called with every new identity.
    """

    def __init__(
        self,
        folder: Path,
        addresses: Sequence[str],
        act: Callable[[Stranger], None],
        every_s: float,
        count: int = 1,
        arrive: Callable[[Stranger], None] = lambda stranger: None,
    ) -> None:
        """The attack starts with the block."""
        self.identities = 0
        self.acts = 0
        self._folder = folder
        self._addresses = addresses
        self._act = act
        self._every_s = every_s
        self._arrive = arrive
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._attack, args=(i,), daemon=True) for i in range(count)]

    def __enter__(self) -> Attackers:
        """Begin."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop the attack."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _attack(self, index: int) -> None:
        while not self._ended.is_set():
            self.identities += 1
            stranger = Stranger(self._folder, f"attacker-{index}-{time.monotonic_ns()}")
            # The node banned it or is dead: continue with the next identity.
            with suppress(SwarmError, OSError, TimeoutError):
                self._stay(stranger)
            stranger.close()
            self._ended.wait(self._every_s)

    def _stay(self, stranger: Stranger) -> None:
        victims = stranger.connect(*self._addresses)
        self._arrive(stranger)
        while not self._ended.is_set() and stranger.connected() >= set(victims):
            self._act(stranger)
            self.acts += 1
            self._ended.wait(self._every_s)


class Bombs:
    """Groups of kilobytes that decode to tens of megabytes: each text is within its limit, half are right answers."""

    def __init__(self, run_id: str) -> None:
        """About one question of the embedded policy's tasks."""
        from swarm.environments.mixture import TaskMixture
        from swarm.environments.sources.reasoning_gym import ReasoningGymSource
        from swarm.environments.tiny import TINY_TASKS

        source = TaskMixture(TINY_TASKS).sources["gcd"]
        assert isinstance(source, ReasoningGymSource)
        self._run_id = run_id
        self._ref = source.question(0, 0).ref
        answer = source.oracle(self._ref)
        padding = "\N{FIRE}" + "1" * WIDE_CHARS
        right = Completion(f"{padding}<answer>{answer}</answer>", "stop")
        wrong = Completion(f"{padding}<answer></answer>", "stop")
        self._completions = (right, wrong) * (WIDE_COMPLETIONS // 2)

    def throw(self, stranger: Stranger) -> None:
        """Publish a new one."""
        group = RolloutGroup(
            run_id=self._run_id,
            peer_id=stranger.peer_id,
            sequence=time.time_ns() // 1_000_000,
            created_at=time.time(),
            policy=PolicyId("tiny", "", 0),
            sampling=Sampling(),
            question=self._ref,
            completions=self._completions,
            rewards=(1.0, 0.0) * (WIDE_COMPLETIONS // 2),
        )
        stranger.publish(self._run_id, stranger.seal(self._run_id, "group", group))


def service_attacker(run_id: str) -> Callable[[Stranger], None]:
    """For `Attackers`: every stranger attacks a learner's services."""

    def arrive(stranger: Stranger) -> None:
        attack = ServiceAttacks(
            stranger.daemon, stranger.feed, stranger.identity, run_id, stranger.connected(), Counter()
        )
        stranger.begin(attack.run(LEARNER_ATTACKS))

    return arrive


def find_run_id(folder: Path, address: str) -> str:
    """The run of the node at an address, as a guest asks it."""
    guest = Stranger(folder, "guest")
    try:
        (victim,) = guest.connect(address)
        return guest.manifest(victim).run_id
    finally:
        guest.close()
