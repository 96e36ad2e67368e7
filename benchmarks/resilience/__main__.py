"""How attackers slow down real nodes: rounds of peers under decompression bombs, steps of a learner under attack, and
others' groups that a peer uses while strangers offer groups that do not exist.

    python -m benchmarks.resilience [--quick] [--out FILE] [--only NAME ...] [--repeats N]

Every figure is a ratio to the same nodes immediately before and after the attack: a policy that learns changes its own
pace. Attackers whose connections are closed return under another identity. Where control groups allow it, each node has
its own share of the processor, like a separate machine, so that the costs of attackers and of other nodes do not slow
down the victim.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.children import ChildProcesses
from benchmarks.common.live import LOOK_EVERY_S, Attackers, Bombs, Nodes, find_run_id, service_attacker
from benchmarks.common.report import Report, row
from benchmarks.common.running import Result, at_least_one, conclude, measure, option_parser, scratch, wide_console
from benchmarks.network.flood import Memory, Scale, Times
from nodes.simulation.cell import CpuShares, missing
from swarm.net.roster import read_roster
from swarm.net.trust.accounts import OFFENCES
from swarm.reasons import Reason
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE
from tests.attacks.offering import Promising
from tests.attacks.stranger import Stranger

BOMBS_PER_S = (1, 2, 4)
NUM_STRANGERS = (3, 10)
VICTIM_CORES, WORKER_CORES, OTHER_CORES = 1.0, 0.5, 0.25
"""The victim has as much as the smallest machine; strangers have at least half a core of two."""
NUM_PROMISING, NUM_NEW, NEW_EVERY_S = 3, 2, 40.0
"""Strangers that promise groups from the beginning of an attack on, and those that join them now and then."""
NUM_GUESTS = 2
"""With these, offers are cheaper than groups for everybody."""
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

    @property
    def promises_s(self) -> float:
        """Length of each attack by promises, and of each period without."""
        return 20.0 if self.quick else 120.0

    @contextmanager
    def nodes(self) -> Iterator[Nodes]:
        """Processes that end with the block."""
        with ChildProcesses(Path(tempfile.mkdtemp(dir=self.folder))) as processes:
            yield Nodes(processes, self.shares)


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
    outcomes: dict[int, list[Attacked]] = {rate: [] for rate in BOMBS_PER_S}
    with plan.nodes() as nodes:
        address = nodes.start("bootstrap", cores=OTHER_CORES)
        victim = nodes.start("join", address, cores=VICTIM_CORES)
        nodes.start("join", address, cores=OTHER_CORES)
        nodes.warm_up(1)
        run_id = find_run_id(plan.folder, address)
        bomb = Bombs(run_id)
        calm = nodes.pace(1, plan.calm_s)
        for _ in range(plan.repeats):
            for rate in BOMBS_PER_S:
                attackers = Attackers(plan.folder, (victim,), bomb.throw, 1 / rate)
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
        run_id = find_run_id(plan.folder, address)
        calm = nodes.pace(0, plan.calm_s)
        for _ in range(plan.repeats):
            for count in NUM_STRANGERS:
                attackers = Attackers(
                    plan.folder, (address,), lambda stranger: None, LOOK_EVERY_S, count, service_attacker(run_id)
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


@dataclass(frozen=True)
class Used:
    """Others' groups that a node used in a period."""

    groups: int
    rounds: int
    seconds: float

    def over(self, before: Used, after: Used) -> tuple[float, float]:
        """Ratio of its groups in a round, and in a second, to the means of two other periods."""
        rounds = self.groups / self.rounds, before.groups / before.rounds, after.groups / after.rounds
        seconds = self.groups / self.seconds, before.groups / before.seconds, after.groups / after.seconds
        return 2 * rounds[0] / (rounds[1] + rounds[2]), 2 * seconds[0] / (seconds[1] + seconds[2])


def promises(plan: Plan) -> Result:
    """Others' groups that a peer uses while strangers offer groups that do not exist, and answer no request."""
    ratios: list[tuple[float, float]] = []
    with plan.nodes() as nodes, ExitStack() as guests:
        address = nodes.start("bootstrap", "examples/tiny.yaml", cores=OTHER_CORES)
        author, victim = (nodes.start("join", address, cores=cores) for cores in (OTHER_CORES, WORKER_CORES))
        run_id = find_run_id(plan.folder, address)
        for _ in range(NUM_GUESTS):
            _stranger(plan, guests, run_id, author, victim)
        nodes.warm_up(2)
        calm = _used(nodes, lambda: time.sleep(plan.promises_s))
        for _ in range(plan.repeats):
            with ExitStack() as strangers:

                def promise(strangers: ExitStack = strangers) -> None:
                    _promise(plan, strangers, run_id, author, victim)

                attacked = _used(nodes, promise)
            after = _used(nodes, lambda: time.sleep(plan.promises_s))
            ratios.append(attacked.over(calm, after))
            calm = after
        charges = sum(_charges(nodes, *pair) for pair in ((2, author), (1, victim)))
    by_round, by_second = zip(*ratios, strict=True)
    who = f"{NUM_PROMISING} strangers that promise groups, and {NUM_NEW} new ones every {NEW_EVERY_S:.0f} s"
    return [
        row(f"{who}: groups of others in a round, of those before and after", by_round, "", target=KEEPS),
        row("the same in a minute", by_second, "", target=KEEPS),
        row("charges against honest authors", [charges], "", target=0, better="lower"),
    ], []


def _stranger(plan: Plan, stack: ExitStack, run_id: str, *addresses: str) -> Stranger:
    """A new one in the run, connected with nodes; it leaves with the stack."""
    stranger = Stranger(plan.folder, f"promising-{time.monotonic_ns()}")
    stack.callback(stranger.close)
    stranger.connect(*addresses)
    stranger.follow(run_id)
    return stranger


def _promise(plan: Plan, stack: ExitStack, run_id: str, *addresses: str) -> None:
    """One attack."""
    ends, count = time.monotonic() + plan.promises_s, NUM_PROMISING
    while (left := ends - time.monotonic()) > 0:
        for _ in range(count):
            Promising(_stranger(plan, stack, run_id, *addresses), run_id)
        time.sleep(min(NEW_EVERY_S, left))
        count = NUM_NEW


def _used(nodes: Nodes, meanwhile: Callable[[], None]) -> Used:
    """What the last node uses meanwhile."""
    file = nodes.out(len(nodes.children) - 1) / METRICS_FILE
    began, before = time.monotonic(), PeerHistory.read(file)
    meanwhile()
    after = PeerHistory.read(file)
    used = after.groups["used_external"] - before.groups["used_external"]
    return Used(used, len(after.rounds) - len(before.rounds), time.monotonic() - began)


def _charges(nodes: Nodes, index: int, address: str) -> int:
    """Offences of the node at an address in another's book, except texts that the other finds improbable."""
    peer_id = address.rsplit("/", 1)[1]
    dropped = next((each.dropped for each in read_roster(nodes.out(index)).peers if each.peer_id == peer_id), {})
    return sum(count for reason, count in dropped.items() if reason in set(OFFENCES) - {Reason.IMPROBABLE})


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


def _told(what: str, outcomes: dict[int, list[Attacked]]) -> str:
    parts = [
        f"at {size}: {sum(o.acts for o in seen)} under {sum(o.identities for o in seen)} identities"
        for size, seen in outcomes.items()
    ]
    return f"{what}, in all: {'; '.join(parts)}."


MEASUREMENTS: dict[str, Callable[[Plan], Result]] = {"bombs": bombs, "learner": learner, "promises": promises}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; 130 when interrupted."""
    parser = option_parser("resilience", __doc__, MEASUREMENTS)
    parser.add_argument("--repeats", type=at_least_one, help="of every attack; default 3, with --quick 1")
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
