"""How attackers slow down real nodes: rounds of peers under decompression bombs, steps of a learner under attack.

    python -m benchmarks.resilience [--quick] [--out FILE] [--only NAME ...] [--repeats N]

Every figure is a ratio to the same nodes immediately before and after the attack: a policy that learns changes its own
pace. Attackers whose connections are closed return under another identity. Where control groups allow it, each node has
its own share of the processor, like a separate machine, so that the costs of attackers and of other nodes do not slow
down the victim.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.children import Child, ChildFailed, ChildProcesses, until
from benchmarks.common.report import Report, row
from benchmarks.common.running import Result, conclude, measure, option_parser, scratch, wide_console
from benchmarks.common.service_attacks import LEARNER_ATTACKS, ServiceAttacks
from benchmarks.common.stranger import Stranger
from benchmarks.network.fleet import ROOT
from benchmarks.network.flood import Memory, Scale, Times
from nodes.simulation.shares import CpuShares, missing
from swarm.errors import SwarmError
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE
from swarm.types import Completion, PolicyId, RolloutGroup, Sampling, TaskRef

LOOPBACK = ("--network.listen=/ip4/127.0.0.1/tcp/0", "--network.nat_port_map=false", "--evaluation.num_questions=0")
BOMBS_PER_S = (1, 2, 4)
NUM_STRANGERS = (3, 10)
WIDE_COMPLETIONS = 120
WIDE_CHARS = 65_000
START_TIMEOUT_S = 180.0
WARM_ROUNDS = 20
VICTIM_CORES, WORKER_CORES, OTHER_CORES = 1.0, 0.5, 0.25
"""The victim has as much as the smallest machine; strangers have at least half a core of two."""
LOOK_EVERY_S = 0.5
KEEPS = 0.9
"""Fraction of the rounds or steps per minute."""
FLAT_PERCENT = 5.0


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    quick: bool
    repeats: int
    folder: Path
    shares: CpuShares | None
    """None when processes cannot be limited; then all share the cores."""

    @property
    def calm_s(self) -> float:
        """Length of each period without attack."""
        return 5.0 if self.quick else 30.0

    @property
    def attack_s(self) -> float:
        """Length of each attack: memory is compared between its quarters."""
        return 8.0 if self.quick else 60.0

    @contextmanager
    def nodes(self) -> Iterator[Nodes]:
        """Processes that end with the block."""
        with ChildProcesses(Path(tempfile.mkdtemp(dir=self.folder))) as processes:
            yield Nodes(processes, self.shares)


class Nodes:
    """`swarm` processes on loopback."""

    def __init__(self, processes: ChildProcesses, shares: CpuShares | None) -> None:
        """None yet."""
        self._processes = processes
        self._shares = shares
        self.children: list[Child] = []
        self.addresses: list[str] = []

    def start(self, role: str, *arguments: str, cores: float) -> str:
        """Start another node with its share of the processor; returns its address."""
        out = self._processes.folder / f"{role}-{len(self.children)}"
        command = [sys.executable, "-m", "nodes.cli", role, *arguments, "--out", str(out), *LOOPBACK]
        self.children.append(self._processes.start(out.name, command, {"PYTHONPATH": str(ROOT)}))
        if self._shares is not None:
            self._shares.limit(self.children[-1].process.pid, cores)
        file = out / "multiaddrs"
        if not until(file.exists, START_TIMEOUT_S):
            raise ChildFailed(f"{out.name} printed no address: {self.children[-1].last_words()}")
        self.addresses.append(file.read_text().split()[0])
        return self.addresses[-1]

    def rounds(self, index: int) -> int:
        """Rounds, or steps, that a node has finished. Raises `ChildFailed` when it has ended."""
        child = self.children[index]
        if not child.running:
            raise ChildFailed(f"{child.name} ended: {child.last_words()}")
        latest = PeerHistory.read(self._processes.folder / child.name / METRICS_FILE).latest
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

    def __init__(self, run_id: str, ref: TaskRef, answer: str) -> None:
        """About one question, whose right answer is `answer`."""
        self._run_id = run_id
        self._ref = ref
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


@dataclass(frozen=True)
class Attacked:
    """The effect of an attack on a node."""

    ratio: float | None
    """Ratio of its rounds per minute to those before and after."""
    growth: float
    """Growth of its memory, last quarter of the attack over the second, in percent."""
    identities: int
    acts: int


def bombs(plan: Plan) -> Result:
    """Rounds per minute of a peer that receives decompression bombs."""
    from swarm.environments.mixture import TaskMixture
    from swarm.environments.sources.reasoning_gym import ReasoningGymSource
    from swarm.environments.tiny import TINY_TASKS

    source = TaskMixture(TINY_TASKS).sources["gcd"]
    assert isinstance(source, ReasoningGymSource)
    ref = source.question(0, 0).ref
    answer = source.oracle(ref)
    outcomes: dict[int, list[Attacked]] = {rate: [] for rate in BOMBS_PER_S}
    with plan.nodes() as nodes:
        address = nodes.start("bootstrap", cores=OTHER_CORES)
        victim = nodes.start("join", address, cores=VICTIM_CORES)
        nodes.start("join", address, cores=OTHER_CORES)
        nodes.warm_up(1)
        run_id = _run_id(plan.folder, address)
        calm = nodes.pace(1, plan.calm_s)
        for _ in range(plan.repeats):
            for rate in BOMBS_PER_S:
                attackers = Attackers(plan.folder, (victim,), Bombs(run_id, ref, str(answer)).throw, 1 / rate)
                outcome, calm = _attacked(plan, nodes, 1, attackers, calm)
                outcomes[rate].append(outcome)
    rows = []
    for rate, seen in outcomes.items():
        what = f"{rate} bombs per second"
        rows += [
            row(f"{what}: rounds per minute, of those before and after", [o.ratio for o in seen], "", target=KEEPS),
            row(
                f"{what}: memory, last quarter over second quarter",
                [o.growth for o in seen],
                "%",
                target=FLAT_PERCENT,
                better="lower",
            ),
        ]
    return rows, [_told("bombs", outcomes)]


def learner(plan: Plan) -> Result:
    """Steps per minute of a learner with one worker, attacked by strangers that pretend to be workers."""
    outcomes: dict[int, list[Attacked]] = {count: [] for count in NUM_STRANGERS}
    with plan.nodes() as nodes:
        address = nodes.start("learn", "examples/tiny.yaml", cores=VICTIM_CORES)
        nodes.start("work", address, cores=WORKER_CORES)
        nodes.warm_up(0)
        run_id = _run_id(plan.folder, address)
        calm = nodes.pace(0, plan.calm_s)
        for _ in range(plan.repeats):
            for count in NUM_STRANGERS:
                attackers = Attackers(
                    plan.folder, (address,), lambda stranger: None, LOOK_EVERY_S, count, _service_attacker(run_id)
                )
                outcome, calm = _attacked(plan, nodes, 0, attackers, calm)
                outcomes[count].append(outcome)
    rows = [
        row(
            f"{count} strangers: steps per minute, of those before and after", [o.ratio for o in seen], "", target=KEEPS
        )
        for count, seen in outcomes.items()
    ]
    return rows, [_told("assaults", outcomes)]


def _service_attacker(run_id: str) -> Callable[[Stranger], None]:
    def arrive(stranger: Stranger) -> None:
        attack = ServiceAttacks(stranger.daemon, stranger.identity, run_id, stranger.connected(), Counter())
        stranger.begin(attack.run(LEARNER_ATTACKS))

    return arrive


def _attacked(plan: Plan, nodes: Nodes, index: int, attackers: Attackers, before: float) -> tuple[Attacked, float]:
    """The effect of an attack on a node with a pace of `before`, and its pace after the attack."""
    scale, began = Scale([nodes.children[index]]), time.time()
    with attackers:
        meanwhile = nodes.pace(index, plan.attack_s)
    memory: Memory = scale.stop(Times(began, began, time.time()))
    after = nodes.pace(index, plan.calm_s)
    calm = (before + after) / 2
    ratio = meanwhile / calm if calm else None
    return Attacked(ratio, memory.growth()[1], attackers.identities, attackers.acts), after


def _run_id(folder: Path, address: str) -> str:
    guest = Stranger(folder, "guest")
    try:
        (victim,) = guest.connect(address)
        return guest.manifest(victim).run_id
    finally:
        guest.close()


def _told(what: str, outcomes: dict[int, list[Attacked]]) -> str:
    parts = [
        f"at {size}: {sum(o.acts for o in seen)} under {sum(o.identities for o in seen)} identities"
        for size, seen in outcomes.items()
    ]
    return f"{what}, in all: {'; '.join(parts)}."


MEASUREMENTS: dict[str, Callable[[Plan], Result]] = {"bombs": bombs, "learner": learner}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; 130 when interrupted."""
    parser = option_parser("resilience", __doc__, MEASUREMENTS)
    parser.add_argument("--repeats", type=int, help="of every attack; default 3, with --quick 1")
    options = parser.parse_args(arguments)
    report, console = Report("resilience"), wide_console()

    def take() -> int:
        with scratch() as folder, closing(CpuShares()) as shares:
            problem = missing()
            report.add([], [problem or "Every node has its share of the processor, strangers have the rest."])
            repeats = options.repeats or (1 if options.quick else 3)
            plan = Plan(options.quick, repeats, Path(folder), None if problem else shares)
            return measure(MEASUREMENTS, options.only, plan, report, console, quick=plan.quick)

    return conclude(take, report, options, console)


if __name__ == "__main__":
    sys.exit(main())
