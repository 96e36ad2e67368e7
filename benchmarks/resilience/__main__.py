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
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.children import ChildProcesses
from benchmarks.common.live import LOOK_EVERY_S, Attackers, Bombs, Nodes, find_run_id, service_attacker
from benchmarks.common.report import Report, row
from benchmarks.common.running import Result, at_least_one, conclude, measure, option_parser, scratch, wide_console
from benchmarks.network.flood import Memory, Scale, Times
from nodes.simulation.cell import CpuShares, missing

BOMBS_PER_S = (1, 2, 4)
NUM_STRANGERS = (3, 10)
VICTIM_CORES, WORKER_CORES, OTHER_CORES = 1.0, 0.5, 0.25
"""The victim has as much as the smallest machine; strangers have at least half a core of two."""
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


MEASUREMENTS: dict[str, Callable[[Plan], Result]] = {"bombs": bombs, "learner": learner}


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
