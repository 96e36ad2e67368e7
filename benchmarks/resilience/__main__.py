"""What strangers can take from nodes as people run them: rounds of peers under bombs, steps of a learner under a siege.

    python -m benchmarks.resilience [--quick] [--out FILE] [--only NAME ...] [--repeats N]

Every figure is a ratio to the same nodes a moment before, when nobody attacked them. Strangers that are hung up on come
back under another identity. Where control groups allow it each node has a part of the processor of its own, as if it
were a machine: what an attack costs those who attack, and other nodes, is not the victim's loss.
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

from benchmarks.common.children import Child, ChildFailed, Nursery, until
from benchmarks.common.report import Report, row
from benchmarks.common.running import Result, conclude, measure, option_parser, scratch, wide_console
from benchmarks.common.shares import CpuShares, missing
from benchmarks.common.siege import LEARNER_ASSAULTS, Siege
from benchmarks.common.stranger import Stranger
from benchmarks.network.fleet import ROOT
from benchmarks.network.flood import Memory, Scale, Times
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
VICTIM_CORES, WORKER_CORES, OTHER_CORES = 0.6, 0.7, 0.3
"""With them strangers have more than half a core of two."""
LOOK_EVERY_S = 0.5
KEEPS = 0.9
"""Of the rounds or steps a minute."""
FLAT_PERCENT = 5.0


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    quick: bool
    repeats: int
    folder: Path
    shares: CpuShares | None
    """None where processes cannot be limited: then all share the cores."""

    @property
    def calm_s(self) -> float:
        """Length of each time of peace."""
        return 5.0 if self.quick else 30.0

    @property
    def attack_s(self) -> float:
        """Length of each attack: memory is compared between its quarters."""
        return 8.0 if self.quick else 60.0

    @contextmanager
    def nodes(self) -> Iterator[Nodes]:
        """Processes that are gone afterwards."""
        with Nursery(Path(tempfile.mkdtemp(dir=self.folder))) as nursery:
            yield Nodes(nursery, self.shares)


class Nodes:
    """`swarm` processes on loopback."""

    def __init__(self, nursery: Nursery, shares: CpuShares | None) -> None:
        """None yet."""
        self._nursery = nursery
        self._shares = shares
        self.children: list[Child] = []
        self.addresses: list[str] = []

    def start(self, role: str, *arguments: str, cores: float) -> str:
        """Another node with its part of the processor; its address."""
        out = self._nursery.folder / f"{role}-{len(self.children)}"
        command = [sys.executable, "-m", "nodes.cli", role, *arguments, "--out", str(out), *LOOPBACK]
        self.children.append(self._nursery.start(out.name, command, {"PYTHONPATH": str(ROOT)}))
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
        latest = PeerHistory.read(self._nursery.folder / child.name / METRICS_FILE).latest
        return latest.round if latest else 0

    def warm_up(self, index: int) -> None:
        """Wait until a node is at work. Raises `ChildFailed`."""
        if not until(lambda: self.rounds(index) >= WARM_ROUNDS, START_TIMEOUT_S, LOOK_EVERY_S):
            raise ChildFailed(f"{self.children[index].name} does not get going: {self.children[index].last_words()}")

    def pace(self, index: int, seconds: float) -> float:
        """Rounds a minute of a node from now on."""
        began, before = time.monotonic(), self.rounds(index)
        time.sleep(seconds)
        return 60 * (self.rounds(index) - before) / (time.monotonic() - began)


class Raid:
    """Strangers that attack a node until the block ends, each in a thread: `act` does one thing, `every_s`.

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
        """Nobody comes before the block begins."""
        self.identities = 0
        self.acts = 0
        self._folder = folder
        self._addresses = addresses
        self._act = act
        self._every_s = every_s
        self._arrive = arrive
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._attack, args=(i,), daemon=True) for i in range(count)]

    def __enter__(self) -> Raid:
        """Begin."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Call everybody off."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _attack(self, index: int) -> None:
        while not self._ended.is_set():
            self.identities += 1
            stranger = Stranger(self._folder, f"raider-{index}-{time.monotonic_ns()}")
            # A node that bans it, or is gone: the next identity tries.
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
    """Groups of kilobytes that decode to tens of megabytes: each text keeps to its limit, half answer rightly."""

    def __init__(self, run_id: str, ref: TaskRef, answer: str) -> None:
        """About one question, whose right answer is `answer`."""
        self._run_id = run_id
        self._ref = ref
        padding = "\N{FIRE}" + "1" * WIDE_CHARS
        right = Completion(f"{padding}<answer>{answer}</answer>", "stop")
        wrong = Completion(f"{padding}<answer></answer>", "stop")
        self._completions = (right, wrong) * (WIDE_COMPLETIONS // 2)

    def throw(self, stranger: Stranger) -> None:
        """Publish one that nobody has seen."""
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
    """What an attack did to a node."""

    ratio: float | None
    """Of its rounds a minute to those before."""
    growth: float
    """Of its memory, last quarter of the attack over the second, in percent."""
    identities: int
    acts: int


def bombs(plan: Plan) -> Result:
    """Rounds a minute of a peer to which somebody publishes groups that are small on the wire only."""
    from swarm.environments.mixture import TaskMixture
    from swarm.environments.tiny import TINY_TASKS

    source = TaskMixture(TINY_TASKS).sources["gcd"]
    ref, answer = source.question(0, 0).ref, source.oracle(0, 0)  # type: ignore[attr-defined]
    outcomes: dict[int, list[Attacked]] = {rate: [] for rate in BOMBS_PER_S}
    with plan.nodes() as nodes:
        address = nodes.start("bootstrap", cores=OTHER_CORES)
        victim = nodes.start("join", address, cores=VICTIM_CORES)
        nodes.start("join", address, cores=OTHER_CORES)
        nodes.warm_up(1)
        run_id = _run_id(plan.folder, address)
        for _ in range(plan.repeats):
            for rate in BOMBS_PER_S:
                raid = Raid(plan.folder, (victim,), Bombs(run_id, ref, str(answer)).throw, 1 / rate)
                outcomes[rate].append(_attacked(plan, nodes, 1, raid))
    rows = []
    for rate, seen in outcomes.items():
        what = f"{rate} bombs a second"
        rows += [
            row(f"{what}: rounds a minute, of those before", [o.ratio for o in seen], "", target=KEEPS),
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
    """Steps a minute of a learner with one worker, besieged by strangers that pretend to follow it."""
    outcomes: dict[int, list[Attacked]] = {count: [] for count in NUM_STRANGERS}
    with plan.nodes() as nodes:
        address = nodes.start("learn", "examples/tiny.yaml", cores=VICTIM_CORES)
        nodes.start("work", address, cores=WORKER_CORES)
        nodes.warm_up(0)
        run_id = _run_id(plan.folder, address)
        for _ in range(plan.repeats):
            for count in NUM_STRANGERS:
                raid = Raid(plan.folder, (address,), lambda stranger: None, LOOK_EVERY_S, count, _besieger(run_id))
                outcomes[count].append(_attacked(plan, nodes, 0, raid))
    rows = [
        row(f"{count} strangers: steps a minute, of those before", [o.ratio for o in seen], "", target=KEEPS)
        for count, seen in outcomes.items()
    ]
    return rows, [_told("assaults", outcomes)]


def _besieger(run_id: str) -> Callable[[Stranger], None]:
    def arrive(stranger: Stranger) -> None:
        siege = Siege(stranger.daemon, stranger.identity, run_id, stranger.connected(), Counter())
        stranger.begin(siege.run(LEARNER_ASSAULTS))

    return arrive


def _attacked(plan: Plan, nodes: Nodes, index: int, raid: Raid) -> Attacked:
    before = nodes.pace(index, plan.calm_s)
    scale, began = Scale([nodes.children[index]]), time.time()
    with raid:
        meanwhile = nodes.pace(index, plan.attack_s)
    memory: Memory = scale.stop(Times(began, began, time.time()))
    ratio = meanwhile / before if before else None
    return Attacked(ratio, memory.growth()[1], raid.identities, raid.acts)


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
            report.add([], [problem or "Every node has its part of the processor, strangers what is left."])
            repeats = options.repeats or (1 if options.quick else 3)
            plan = Plan(options.quick, repeats, Path(folder), None if problem else shares)
            return measure(MEASUREMENTS, options.only, plan, report, console, quick=plan.quick)

    return conclude(take, report, options, console)


if __name__ == "__main__":
    sys.exit(main())
