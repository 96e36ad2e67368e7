"""More nodes than a machine can run: feeds simulated with measured costs, compared with real daemons at small sizes.

    python -m benchmarks.scale [--quick] [--out FILE] [--only NAME ...] [--costs FILE]

benchmarks/results/scale.md describes the model, its assumptions, and the conclusions.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

from benchmarks.common.report import Report, Row, percentile, row
from benchmarks.common.running import Result, conclude, measure, option_parser, wide_console
from benchmarks.scale.offers import RECORD_BYTES, Node, Sharing, node, settled_rate
from benchmarks.scale.parameters import FREE, KIB, NOTHING, PACKET_OVERHEAD, Costs, Load, Network, Rules, Transfer
from benchmarks.scale.simulation import Outcome, simulate
from benchmarks.scale.traffic import (
    discovery,
    feeding,
    largest_rate,
    repair_bytes_per_s,
)

SIZES = (4 * KIB, 16 * KIB, 64 * KIB)
UPLINKS = (10e6, 100e6)
MANY = 10_000
"""Nodes with which one size suffices."""
RATE = 5.0
"""Default groups per second of all nodes together."""
LIMITS_NODES = 100
"""What a node sends hardly depends on the number of nodes, so that few suffice to measure a link's capacity."""
LOOPBACK_DELAY_S = 50e-6
SEEDS = (0, 1, 2)
MOST_GROWTH = 1.5
"""Of what a node pays, from 1,000 to 100,000 nodes."""


@dataclass(frozen=True)
class Plan:
    """Sizes of the measurements, and the costs."""

    quick: bool
    costs: Costs
    rules: Rules = Rules()

    @property
    def node_counts(self) -> tuple[int, ...]:
        """Sizes of the swarm."""
        return (20, 50) if self.quick else (100, 1_000, 10_000)

    def load(self, num_nodes: int, record_bytes: int, groups_per_s: float = RATE) -> Load:
        """Few enough groups that ten thousand nodes take half a minute; each is delivered to all of them."""
        return Load(record_bytes, groups_per_s, 10 if self.quick else max(3, 20_000 // num_nodes))

    def simulate(self, network: Network, load: Load, seed: int = 0) -> Outcome:
        """One run."""
        return simulate(network, load, self.rules, self.costs, seed=seed)


def costs(plan: Plan) -> Result:
    """The costs in the model."""
    rows = [row(f"CPU of sealing, {_kib(size)}", [1e6 * plan.costs.seal_s.at(size)], "us") for size in SIZES]
    for name, title, sizes in (
        ("pushed", "a record in a feed", (RECORD_BYTES, *SIZES[:2])),
        ("named", "an id in a feed", SIZES[:1]),
        ("fetched", "a record that is asked for", SIZES),
    ):
        transfer: Transfer = getattr(plan.costs, name)
        for size in sizes:
            what = f"{title}, {size} bytes"
            rows += [
                row(f"{what}: CPU of the daemon that gives", [1e6 * transfer.server_s.at(size)], "us"),
                row(f"{what}: CPU of the daemon that gets", [1e6 * transfer.reader_s.at(size)], "us"),
                row(f"{what}: CPU of both nodes", [1e6 * transfer.nodes_s.at(size)], "us"),
                row(f"{what}: on the connection", [transfer.wire_bytes.at(size)], "bytes"),
            ]
        rows.append(row(f"{title}: the other way", [transfer.asked_bytes], "bytes"))
    rows += [
        row("an entry of a repair summary", [plan.costs.held_bytes], "bytes"),
        row("a peer's signed record", [plan.costs.peer_record_bytes], "bytes"),
        row("the directory, for each peer in it, to one reader", [plan.costs.directory_bytes], "bytes"),
    ]
    return rows, []


def spread(plan: Plan) -> Result:
    """Delivery and traffic by number of nodes and size of a group."""
    rows: list[Row] = []
    for num_nodes in plan.node_counts:
        for size in SIZES if num_nodes < MANY else SIZES[1:2]:
            load = plan.load(num_nodes, size)
            outcome = plan.simulate(Network(num_nodes), load)
            what = f"N = {num_nodes}, {_kib(size)}, {RATE:g}/s in all"
            rows += _delivery(what, outcome) + _traffic(plan, what, outcome, load)
    return rows, [
        "Delivery counts pairs of a group and a node other than its publisher that was there from then to the end.",
        "Traffic is what a node sends; on average it receives as much.",
    ]


def _delivery(what: str, outcome: Outcome) -> list[Row]:
    def ms(percent: float) -> list[float | None]:
        value = percentile(outcome.latencies_s, percent)
        return [None if value is None else 1e3 * value]

    return [
        row(f"{what}: to a node, median", ms(50), "ms"),
        row(f"{what}: to a node, 99th percentile", ms(99), "ms"),
        row(f"{what}: to the last node, mean", [1e3 * mean(outcome.last_s)], "ms"),
        row(f"{what}: delivered fraction", [outcome.fraction], ""),
        row(f"{what}: records a node receives of each", [outcome.copies_per_delivery], ""),
        row(f"{what}: ids a node receives of each", [outcome.names_per_delivery], ""),
        row(f"{what}: hops, mean", [mean(outcome.hops)], ""),
        row(f"{what}: brought by repair", [1e2 * _share(outcome.repaired, outcome)], "% of deliveries"),
        row(f"{what}: the author had no follower", [1e2 * outcome.unheard / outcome.num_groups], "% of groups"),
        row(f"{what}: followers, most", [max(outcome.followers)], ""),
        row(f"{what}: nodes without followers at the end", [1e2 * _unfollowed(outcome)], "%"),
    ]


def _unfollowed(outcome: Outcome) -> float:
    return outcome.followers.count(0) / len(outcome.followers)


def _share(count: int, outcome: Outcome) -> float:
    return count / max(1, len(outcome.latencies_s))


def _traffic(plan: Plan, what: str, outcome: Outcome, load: Load) -> list[Row]:
    sent = feeding(outcome, load, plan.costs)
    kbytes = {
        "records that are new": sent.first,
        "records that are not": sent.duplicates,
        "ids and requests": sent.ids,
        "repair summaries": repair_bytes_per_s(plan.rules, plan.costs, load.groups_per_s),
        "feeds, busiest node": sent.busiest,
    }
    return [row(f"{what}: {name}", [value / 1e3], "kB/s") for name, value in kbytes.items()] + [
        row(f"{what}: CPU of a node for the network", [1e2 * sent.cpu], "% of a core")
    ]


def limits(plan: Plan) -> Result:
    """The largest rate of a run by uplink and size of a group, simulated at that rate and at twice it."""
    rows: list[Row] = []
    num_nodes = 20 if plan.quick else LIMITS_NODES
    for size in SIZES:
        probe = plan.load(num_nodes, size)
        outcome = plan.simulate(Network(num_nodes), probe)
        for uplink in UPLINKS:
            rate = largest_rate(outcome, probe, plan.costs, uplink)
            what = f"N = {num_nodes}, {_kib(size)}, uplink {uplink / 1e6:g} Mbit/s"
            rows.append(row(f"{what}: largest rate in all", [rate], "groups/s"))
            rows += _under(plan, Network(num_nodes, uplink_bits_per_s=uplink), size, rate, what)
            if size == SIZES[1]:
                rows += _under(
                    plan, Network(num_nodes, uplink_bits_per_s=uplink), size, 2 * rate, f"{what}, twice that"
                )
    return rows, []


def _under(plan: Plan, network: Network, size: int, rate: float, what: str) -> list[Row]:
    load = Load(size, rate, max(1, min(int(rate * 10), 10 if plan.quick else 300)))
    outcome = plan.simulate(network, load)
    return _delivery(f"{what}, {rate:.3g}/s", outcome) + _traffic(plan, f"{what}, {rate:.3g}/s", outcome, load)


def faults(plan: Plan) -> Result:
    """Nodes that vanish, and others that come."""
    rows: list[Row] = []
    num_nodes = plan.node_counts[1]
    network = Network(num_nodes, churn_per_min=0.1)
    for size in (RECORD_BYTES, SIZES[1]):
        outcome = plan.simulate(network, plan.load(num_nodes, size))
        rows += _delivery(f"N = {num_nodes}, {size} bytes, 10% of the nodes replaced a minute", outcome)
    return rows, []


def newcomers(plan: Plan) -> Result:
    """Groups of nodes that have come while others left: do they reach everybody, followed by few as these are?"""
    rows: list[Row] = []
    num_nodes = 50 if plan.quick else 300
    network = Network(num_nodes, churn_per_min=0.1)
    load = Load(SIZES[1], 1.0, 10 if plan.quick else 80, by_comers=True)
    for name, num_proven in (("all are as good", 0), ("only the others are proven", num_nodes)):
        for waits in (False, True):
            outcome = simulate(network, load, replace(plan.rules, proven=num_proven, waits=waits), plan.costs)
            what = f"N = {num_nodes}, groups of newcomers, {name}, own records {'wait' if waits else 'do not wait'}"
            rows += _delivery(what, outcome)
    return rows, []


def directory(plan: Plan) -> Result:
    """The cost of discovery."""
    rows: list[Row] = []
    for num_nodes in plan.node_counts:
        found = discovery(plan.rules, plan.costs, num_nodes)
        what = f"N = {num_nodes}, every {plan.rules.announce_every_s:g} s"
        rows += [
            row(f"{what}: exchange between members", [found.exchange / 1e3], "kB/s"),
            row(f"{what}: what comes with renewing an entry in the directory", [found.reading / 1e3], "kB/s"),
            row(f"{what}: each holder of the directory sends", [found.holding / 1e3], "kB/s"),
            row(f"{what}: one answer of a holder", [found.reply_bytes], "bytes"),
        ]
    return rows, []


def offers(plan: Plan) -> Result:
    """Every node makes a group of 16 KB in 30 s, offers it at the common rate, and fetches what it uses."""
    rows: list[Row] = []
    nodes: dict[int, Node] = {}
    for num_nodes in (*plan.node_counts, 10 * plan.node_counts[-1]):
        rate = settled_rate(num_nodes)
        if num_nodes in plan.node_counts:
            load = plan.load(num_nodes, RECORD_BYTES, rate)
            outcome = plan.simulate(Network(num_nodes, uplink_bits_per_s=UPLINKS[0]), load)
        sharing = Sharing(num_nodes, SIZES[1], rate)
        nodes[num_nodes] = found = node(sharing, outcome, plan.rules, plan.costs)
        what = f"N = {num_nodes}, offered"
        rows += [
            row(f"{what}: offers of all nodes", [rate], "1/s"),
            row(f"{what}: a node's download, and upload on average", [found.download / 1e3], "kB/s"),
            row(f"{what}: of that, discovery", [found.directory / 1e3], "kB/s"),
            row(f"{what}: each holder of the directory sends", [found.holding / 1e3], "kB/s"),
            row(f"{what}: groups checked", [found.checks], "1/s"),
            row(f"{what}: CPU of a node for the network", [1e2 * found.cpu], "% of a core"),
            row(f"{what}: nodes that fetch a group", [sharing.pulls_per_offer], ""),
            row(f"{what}: of these, from its author", [found.sent_by_author], ""),
            row(f"{what}: an author's upload in the round after an offer", [found.author / 1e3], "kB/s"),
        ]
    small, large = (nodes[count] for count in sorted(nodes)[-3::2])
    for name in ("download", "directory", "holding", "checks", "cpu", "author"):
        before, after = getattr(small, name), getattr(large, name)
        what = f"a hundred times the nodes, 10 Mbit/s: {name}"
        growth = [after / before] if before else []
        rows.append(row(what, growth, "times", target=MOST_GROWTH, better="lower"))
    return rows, [f"At N = {max(nodes)} a record in a feed is assumed to cost what it does at a tenth of that."]


def reality(plan: Plan) -> Result:
    """The model compared with real daemons on this machine; the baseline column has the daemons' figures."""
    from benchmarks.scale.measure import run_daemons

    rows: list[Row] = []
    for num_nodes in (4,) if plan.quick else (8, 16):
        load = Load(SIZES[1], 10.0, 20 if plan.quick else 200)
        real = asyncio.run(run_daemons(num_nodes, load))
        network = Network(num_nodes, num_nodes, LOOPBACK_DELAY_S, 0.0, 1e10, cores=2)
        runs = [
            simulate(network, load, replace(plan.rules, repair_every_s=0.0), plan.costs, seed=seed) for seed in SEEDS
        ]
        what = f"N = {num_nodes} on this machine, {_kib(load.record_bytes)}, {load.groups_per_s:g}/s in all"
        rows += [
            row(
                f"{what}: a daemon reads of each group of others",
                [_read_bytes(plan, run, load) for run in runs], "bytes", baseline=[real.received_bytes],
            ),
            row(
                f"{what}: records that a node had already, of each group",
                [run.copies_per_delivery - 1 for run in runs], "", baseline=[real.duplicates],
            ),
            row(f"{what}: delivered fraction", [run.fraction for run in runs], "", baseline=[real.fraction]),
        ]  # fmt: skip
        for percent in (50, 99):
            modelled = [1e3 * (percentile(run.latencies_s, percent) or 0.0) for run in runs]
            measured = [1e3 * (percentile(real.latencies_s, percent) or 0.0)]
            rows.append(row(f"{what}: publish to arrival, {percent}%", modelled, "ms", baseline=measured))
        cpu = [_daemon_cpu(plan, run, load) for run in runs]
        rows.append(row(f"{what}: CPU of a daemon", cpu, "% of a core", baseline=[1e2 * real.cpu]))
    return rows, ["In the rows 'on this machine' the column of the public peer holds what real daemons did."]


def _read_bytes(plan: Plan, outcome: Outcome, load: Load) -> float:
    sent = feeding(outcome, load, plan.costs)
    return sent.total / PACKET_OVERHEAD / load.groups_per_s * len(outcome.bytes_sent) / (len(outcome.bytes_sent) - 1)


def bootstrap(plan: Plan) -> Result:
    """A crowd at a real bootstrap: light peers of one process, which dial as nodes do; and how that goes on."""
    from benchmarks.scale.bootstrap import Setting, look_at, steady

    rows: list[Row] = []
    # Two minutes is the daemon's grace period; the window has two of its rounds of closing connections.
    arrive_s, settle_s, window_s = (2.0, 5.0, 4.0) if plan.quick else (60.0, 200.0, 264.0)
    for num_peers in (20,) if plan.quick else (600, 1_500):
        seen = look_at(Setting(num_peers, arrive_s, settle_s, window_s))
        what = f"{num_peers} peers at one bootstrap"
        rows += [
            row(f"{what}: open connections", seen.connections, ""),
            row(f"{what}: a closed connection had lasted", seen.held_s, "s"),
            row(f"{what}: redials", [seen.redials_per_s], "1/s"),
            row(f"{what}: redials, most within a second", [seen.most_redials], "1/s"),
            row(f"{what}: redials that failed", [seen.failures], ""),
            row(f"{what}: a handshake", [1e3 * duration for duration in seen.handshakes_s], "ms"),
            row(f"{what}: the daemon's CPU for an arrival", [1e3 * seen.cpu_per_arrival_s], "ms"),
            row(f"{what}: CPU of the daemon", [1e2 * seen.daemon_cpu], "% of a core"),
            row(f"{what}: CPU of the bootstrap's other processes", [1e2 * seen.node_cpu], "% of a core"),
            row(f"{what}: memory of the daemon", [seen.daemon_bytes / 1e6], "MB"),
            row(f"{what}: of that, before the crowd", [seen.daemon_bytes_alone / 1e6], "MB"),
            row(f"{what}: descriptors of the daemon", [seen.descriptors], ""),
            row(f"{what}: a stranger learns the run", seen.manifests_s, "s"),
            row(f"{what}: strangers without an answer", [seen.unanswered], ""),
            row(f"{what}: connections that a real member made", seen.members_dialled, ""),
            row(f"{what}: a newcomer has joined", [seen.joined_s], "s"),
        ]
        for num_members in (num_peers, 10_000) if seen.held_s else ():
            found = steady(num_members, median(seen.held_s))
            rows += [
                row(f"N = {num_members} for a day: redials", [found.redials_per_s], "1/s"),
                row(f"N = {num_members} for a day: open connections", [found.connections], ""),
            ]
    return rows, ["A stranger, and a newcomer, starts a daemon of its own first."]


def _daemon_cpu(plan: Plan, outcome: Outcome, load: Load) -> float:
    daemons_only = {
        name: replace(getattr(plan.costs, name), nodes_s=NOTHING) for name in ("pushed", "named", "fetched")
    }
    return 1e2 * feeding(outcome, load, replace(plan.costs, seal_s=NOTHING, **daemons_only)).cpu


def _kib(size: int) -> str:
    return f"{size // KIB} KB"


SECTIONS: dict[str, Callable[[Plan], Result]] = {
    "costs": costs,
    "reality": reality,
    "spread": spread,
    "limits": limits,
    "faults": faults,
    "newcomers": newcomers,
    "directory": directory,
    "offers": offers,
    "bootstrap": bootstrap,
}
WITHOUT_COSTS = {"bootstrap"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the costs, simulate, print, write; 130 when interrupted."""
    parser = option_parser("scale", __doc__, SECTIONS)
    parser.add_argument("--costs", type=Path, help="JSON of the costs; measured and written there if there is none")
    options = parser.parse_args(arguments)
    report, console = Report("scale"), wide_console()

    def take() -> int:
        needed = not options.only or set(options.only) - WITHOUT_COSTS
        plan = Plan(options.quick, _costs(options.costs, options.quick) if needed else FREE)
        return measure(SECTIONS, options.only, plan, report, console, quick=plan.quick)

    return conclude(take, report, options, console)


def _costs(path: Path | None, quick: bool) -> Costs:
    if path is not None and path.exists():
        return Costs.read(path)
    from benchmarks.scale.measure import measure_costs

    measured = measure_costs(quick=quick)
    if path is not None:
        measured.write(path)
    return measured


if __name__ == "__main__":
    sys.exit(main())
