"""Whether a swarm that runs for hours keeps its size: memory, descriptors, threads, disk, temporary files.

    python -m benchmarks.soak [--hours H] [--quick] [--folder FOLDER]

Eight nodes: a founder and four peers, of which one is killed and started again all the time, and a learner with two
workers, one of which is, too. Strangers throw decompression bombs at the peers and attack the learner's services, under
new identities whenever they are banned. Everything is sampled regularly, and the last third of the time is compared
with the third before it: what grows without bound grows there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from rich.console import Console

from benchmarks.common.children import ChildProcesses
from benchmarks.common.live import LOOK_EVERY_S, Attackers, Bombs, Nodes, find_run_id, service_attacker
from benchmarks.common.report import Report
from benchmarks.common.running import conclude, option_parser, scratch, wide_console
from benchmarks.soak.census import MEMORY, census
from benchmarks.soak.courses import (
    CHURNING_PEER,
    CHURNING_WORKER,
    LEARNER,
    PEERS,
    STAYING,
    WORKER,
    Course,
    keep,
    notes,
    rows,
)
from nodes.simulation.cell import CpuShares, missing

CORES = 0.2
BOMB_EVERY_S = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write; 130 when interrupted, with what was seen so far."""
    parser = option_parser("soak", __doc__, ())
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--cores", type=float, default=CORES, help="that every node has")
    parser.add_argument("--folder", type=Path, default=Path("runs/soak"), help="samples and picture")
    options = parser.parse_args(arguments)
    seconds = 60.0 if options.quick else 3600 * options.hours
    report, console = Report("soak"), wide_console()
    courses: list[Course] = []

    def take() -> int:
        problem = missing()
        report.add([], [problem or f"Every node has {options.cores:g} of a core, strangers have the rest."])
        try:
            with scratch() as folder, fleet(Path(folder), options.cores) as nodes:
                courses.extend(Course(nodes.children[index].name) for index in range(len(nodes.children)))
                watch(nodes, courses, seconds, options.folder, console)
        finally:
            if courses:
                report.add(rows(courses, judged=not options.quick), notes(courses))
                keep(courses, options.folder)
        return 0

    return conclude(take, report, options, console)


@contextmanager
def fleet(folder: Path, cores: float) -> Iterator[Nodes]:
    """The eight nodes, each with so many cores, attacked until the block ends."""
    with ExitStack() as stack:
        shares = stack.enter_context(closing(CpuShares())) if missing() is None else None
        nodes = Nodes(stack.enter_context(ChildProcesses(folder)), shares)
        founder = nodes.start("bootstrap", cores=cores)
        peers = [nodes.start("join", founder, cores=cores) for _ in (*PEERS, CHURNING_PEER)]
        learner = nodes.start("learn", "examples/tiny.yaml", cores=cores)
        for _ in (WORKER, CHURNING_WORKER):
            nodes.start("work", learner, cores=cores)
        nodes.warm_up(PEERS[0])
        nodes.warm_up(LEARNER)
        bombs = Bombs(find_run_id(folder, founder))
        stack.enter_context(Attackers(folder, peers[: len(PEERS)], bombs.throw, BOMB_EVERY_S))
        services = service_attacker(find_run_id(folder, learner))
        stack.enter_context(Attackers(folder, (learner,), lambda stranger: None, LOOK_EVERY_S, 1, services))
        yield nodes


def watch(nodes: Nodes, courses: Sequence[Course], seconds: float, folder: Path, console: Console) -> None:
    """Sample all nodes, and restart the churning ones in turns, until the time is over."""
    began, every = time.monotonic(), max(2.0, seconds / 240)
    churn_every = max(5 * every, 15.0)
    churned, restarts = began, 0
    while (elapsed := time.monotonic() - began) < seconds:
        for index, course in enumerate(courses):
            course.times.append(elapsed / 3600)
            course.samples.append(census(nodes.children[index], nodes.out(index), nodes.temporary(index)))
            course.rounds.append(nodes.rounds(index) if index in STAYING[1:] else 0)
        if time.monotonic() - churned >= churn_every:
            nodes.restart((CHURNING_PEER, CHURNING_WORKER)[restarts % 2])
            churned, restarts = time.monotonic(), restarts + 1
        worst = max(sum(course.series(MEMORY)[-1:]) for course in courses)
        rounds = sum(course.rounds[-1] for course in courses)
        said = f"{elapsed / 60:.0f} of {seconds / 60:.0f} min: {rounds} rounds and steps, {restarts} restarts"
        console.print(f"{said}, largest node {worst:.0f} MiB", highlight=False)
        keep(courses, folder)
        time.sleep(max(0.0, began + min(seconds, elapsed + every) - time.monotonic()))


if __name__ == "__main__":
    sys.exit(main())
