"""The real network: sealed groups through `swarm.net.trust.exchange`, every node a process, on loopback.

    python -m benchmarks.network [--quick] [--out FILE] [--only NAME ...] [--no-baseline] [--repeats N]

The baseline is the public peer's own communication class (`baseline/`), measured in the same run, interleaved with
ours: in its default mode, in which a round takes what the DHT holds, and with the barrier, in which it waits for all.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.common.children import ROOT, ChildFailed, until
from benchmarks.common.report import Report, Row, row
from benchmarks.common.running import Result, at_least_one, conclude, measure, option_parser, scratch, wide_console
from benchmarks.network.attacks import KINDS
from benchmarks.network.baseline.install import PACKAGE, PeerNotInstalled, genrl_python, genrl_versions
from benchmarks.network.delivering import delivered, faults, latency, offered
from benchmarks.network.flood import Outcome, flood
from benchmarks.network.load import crowd, largest, loud, resources, stopped
from benchmarks.network.plan import Plan

HOSTILE = (
    "The hostile peer returns under a new identity when a node closes its connection. Half of the nodes poll for "
    "arrivals all the time, latency is between these; the others once in a round of 10 s. Everything before the "
    "updater is real, including regenerated questions and answers scored in verification workers."
)


def hostile(plan: Plan) -> Result:
    """Forged, replayed, oversize, malformed and wrong-answer records, raw on the topic, against nodes that learn."""
    count = int(plan.scaled(4, 2))
    each, lying, per_s = int(plan.scaled(10_000, 100)), int(plan.scaled(1_000, 20)), plan.scaled(150, 50)
    outcomes = []
    for _ in range(plan.repeats):
        with (
            plan.fleet("learner", count, num_patient=int(plan.scaled(count / 2, 0))) as fleet,
            plan.processes() as processes,
        ):
            fleet.start()
            fleet.settle()
            outcomes.append(flood(fleet, processes, each, lying, per_s, calm_s=plan.scaled(30, 5)))
    what = f"{each} each of {', '.join(KINDS)} records"
    what, then = f"{what}, at most {per_s:g}/s to {count} nodes", "the same"

    def over(figure: Callable[[Outcome], float | None]) -> list[float | None]:
        return [figure(outcome) for outcome in outcomes]

    def at_most(target: float, name: str, figure: Callable[[Outcome], float | None], unit: str = "") -> Row:
        return row(f"{then}: {name}", over(figure), unit, target=target, better="lower")

    must_not = f"{what}: groups of these kinds that came to an update"
    return [
        row(must_not, over(lambda o: o.num_entered), "", target=0, better="lower"),
        at_most(0, "groups trained on with false rewards", lambda o: o.false_rewards),
        at_most(0, "groups trained on twice", lambda o: o.trained_twice),
        at_most(0, "crashes and daemon restarts", lambda o: o.crashes),
        at_most(5, "memory of the worst node, last quarter over second quarter", lambda o: o.memory.growth()[1], "%"),
        row(f"{then}: memory of the worst node, last quarter over before", over(lambda o: o.memory.growth()[0]), "%"),
        row(f"{then}: honest delivered fraction meanwhile", over(lambda o: o.honest), "", target=0.99),
        row(f"{then}: honest groups learned from, of those due", over(lambda o: o.learned), "", target=0.99),
        row(f"{then}: honest median latency before", over(lambda o: o.latency[0]), "ms"),
        row(f"{then}: honest median latency meanwhile", over(lambda o: o.latency[2]), "ms"),
        row(f"{then}: honest 99th percentile before", over(lambda o: o.latency[1]), "ms"),
        row(f"{then}: honest 99th percentile meanwhile", over(lambda o: o.latency[3]), "ms"),
    ], [HOSTILE, *(outcome.fates() for outcome in outcomes[-1:])]


def join(plan: Plan) -> Result:
    """From the start of `swarm join` to the first external group, with warm caches."""
    from swarm.telemetry.history import PeerHistory
    from swarm.telemetry.records import METRICS_FILE

    loopback = ["--network.listen=/ip4/127.0.0.1/tcp/0", "--network.nat_port_map=false"]
    seconds: list[float | None] = []

    def received(out: Path) -> int:
        return PeerHistory.read(out / METRICS_FILE).groups["received"] if (out / METRICS_FILE).exists() else 0

    with plan.processes() as processes:

        def run(name: str, *arguments: str) -> Path:
            out = processes.folder / name
            command = [sys.executable, "-m", "nodes.cli", *arguments, "--out", str(out), *loopback]
            processes.start(name, command, {"PYTHONPATH": str(ROOT)})
            return out

        addresses = run("bootstrap", "bootstrap") / "multiaddrs"
        if not until(addresses.exists, 60.0):
            raise ChildFailed("the bootstrap printed no address")
        address = addresses.read_text().split()[0]
        first = run("running", "join", address)
        until(
            lambda: (first / METRICS_FILE).exists() and PeerHistory.read(first / METRICS_FILE).latest is not None, 90.0
        )
        # The first joins fill the caches.
        for repeat in range(plan.repeats + 1):
            began = time.monotonic()
            out = run(f"joining-{repeat}", "join", address)
            there = until(lambda out=out: received(out) > 0, 90.0, 0.05)  # type: ignore[misc]
            if repeat or plan.quick:
                seconds.append(time.monotonic() - began if there else None)
            processes.children[-1].end()
            if plan.quick:
                break
    return [row("process start of `swarm join` to the first external group", seconds, "s")], []


MEASUREMENTS: dict[str, Callable[[Plan], Result]] = {
    "delivered": delivered,
    "faults": faults,
    "latency": latency,
    "largest": largest,
    "stopped": stopped,
    "resources": resources,
    "crowd": crowd,
    "loud": loud,
    "offered": offered,
    "hostile": hostile,
    "join": join,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; 130 when interrupted."""
    parser = option_parser("network", __doc__, MEASUREMENTS)
    parser.add_argument("--repeats", type=at_least_one, help="of every measurement; default 3, with --quick 1")
    parser.add_argument("--no-baseline", action="store_true", help=f"omit the public peer ({PACKAGE})")
    options = parser.parse_args(arguments)
    report, console = Report("network"), wide_console()

    def take() -> int:
        with scratch() as folder:
            plan = Plan(options.quick, options.repeats or (1 if options.quick else 3), None, Path(folder))
            if not options.no_baseline:
                plan = _with_peer(plan, report, console)
            return measure(MEASUREMENTS, options.only, plan, report, console, quick=plan.quick)

    return conclude(take, report, options, console)


def _with_peer(plan: Plan, report: Report, console: Console) -> Plan:
    console.print(f"the public peer: {PACKAGE} in a separate virtual environment (takes minutes on first use)")
    try:
        python = genrl_python()
        report.versions.update(genrl_versions(python))
    except PeerNotInstalled as error:
        console.print(f"no baseline: {error}", style="red", markup=False)
        report.notes.append(f"No baseline: {error}")
        return plan
    return replace(plan, peer_python=python)


if __name__ == "__main__":
    sys.exit(main())
