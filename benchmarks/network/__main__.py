"""The real network: sealed groups through `swarm.net.trust.exchange`, every node a process, on loopback.

    python -m benchmarks.network [--quick] [--out FILE] [--only NAME ...] [--no-baseline] [--repeats N]

The baseline is the public peer's own communication class (`baseline/`), measured in the same run, interleaved with
ours: in its default mode, in which a round takes what the DHT holds, and with the barrier, in which it waits for all.
"""

from __future__ import annotations

import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from benchmarks.common.children import ROOT, ChildFailed, ChildProcesses, until
from benchmarks.common.report import Report, Row, row
from benchmarks.common.running import Result, at_least_one, conclude, measure, option_parser, scratch, wide_console
from benchmarks.network import delivery
from benchmarks.network.attacks import KINDS
from benchmarks.network.baseline.install import PACKAGE, PeerNotInstalled, genrl_python, genrl_versions
from benchmarks.network.delivery import Delivery, NodeLog, deliveries, fraction, latency_ms
from benchmarks.network.fleet import SETTLED_S, Fleet, Kind, Setting
from benchmarks.network.flood import Outcome, flood
from benchmarks.network.offered import WANTED, Sharing, share_for

KIB, MIB = 2**10, 2**20
CLEAN_FOR_THE_PEER = (
    "The public peer gets a network without loss or delay in every row: its transport cannot be reached from outside."
)
PEER_AT_4_KB = (
    "Latency, CPU and memory of the public peer are at 4 KB and one round a second, which is as fast as its rounds go: "
    "at 16 KB its DHT process fails (see the row on the largest group)."
)
HOSTILE = (
    "The hostile peer returns under a new identity when a node closes its connection. Half of the nodes poll for "
    "arrivals all the time, latency is between these; the others once in a round of 10 s. Everything before the "
    "updater "
    "is real, including regenerated questions and answers scored in verification workers."
)
TAIL_S = 2.0
"""Groups shared this shortly before publishing stops are not counted."""
ARRIVAL_S = 30.0
"""For a group of any size: long enough that a busy machine does not count as a limit."""


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    quick: bool
    repeats: int
    peer_python: Path | None
    folder: Path

    def kinds(self, *, barrier: bool = True, quick: bool = True) -> list[Kind]:
        """The interleaved contenders; with `quick` false a quick run omits the public peer."""
        if self.peer_python is None or (self.quick and not quick):
            return ["ours"]
        return ["ours", "peer", "peer-barrier"] if barrier and not self.quick else ["ours", "peer"]

    def scaled(self, full: float, quick: float) -> float:
        """A duration or a number, by the kind of run."""
        return quick if self.quick else full

    @contextmanager
    def fleet(
        self,
        kind: Kind,
        count: int,
        *,
        loss: float = 0,
        delay_s: float = 0,
        poll_s: float = 0.0,
        num_patient: int = 0,
        wants: float = 0.0,
    ) -> Iterator[Fleet]:
        """Nodes that end with the block."""
        setting = Setting(kind, count, loss, delay_s, poll_s, self.peer_python, num_patient, wants)
        with self.processes() as processes:
            yield Fleet(processes, setting, kind)

    @contextmanager
    def processes(self) -> Iterator[ChildProcesses]:
        """Children, and a new folder for what they write."""
        with ChildProcesses(Path(tempfile.mkdtemp(dir=self.folder))) as processes:
            yield processes


def _versus(mode: str, kinds: Collection[Kind]) -> str:
    """Suffix of a row's name that describes its baseline."""
    return f" (peer: {mode})" if len(kinds) > 1 else ""


def delivered(plan: Plan) -> Result:
    """Groups shared while nodes are still starting."""
    got: dict[Kind, list[float | None]] = {kind: [] for kind in plan.kinds()}
    live: list[float | None] = []
    count, size = int(plan.scaled(8, 4)), 4 * KIB
    for repeat in range(plan.repeats):
        for kind in got:
            logs = _shared(plan, kind, count, size, seed=repeat)
            got[kind].append(fraction(list(deliveries(logs))))
            if kind == "ours":
                live.append(fraction(list(deliveries(logs, window_s=0.0))))
    what = f"delivered fraction, N = {count}, starts within 4 s, 4 KB, 1/s"
    rows = [row(what + _versus("default", got), got["ours"], "", baseline=got.get("peer", []), target=0.999)]
    if "peer-barrier" in got:
        rows.append(row(f"{what} (peer: barrier)", got["ours"], "", baseline=got["peer-barrier"], target=0.999))
    rows.append(row(f"{what}, only to nodes live at the publication", live, "", target=0.999))
    return rows, [delivery.DEFINITION]


def faults(plan: Plan) -> Result:
    """Nodes that die and restart, on a network with loss and delay."""
    rows: list[Row] = []
    count, size = int(plan.scaled(8, 4)), 4 * KIB
    for loss, delay_s in ((0.05, 0.1),) if plan.quick else ((0.0, 0.0), (0.05, 0.1)):
        kinds: list[Kind] = plan.kinds(quick=False) if not loss else ["ours"]
        got: dict[Kind, list[float | None]] = {kind: [] for kind in kinds}
        for repeat in range(plan.repeats):
            for kind in got:
                logs = _shared(plan, kind, count, size, seed=repeat, kills=count // 4, loss=loss, delay_s=delay_s)
                got[kind].append(fraction(list(deliveries(logs))))
        what = f"delivered fraction, N = {count}, 4 KB, 1/s, a quarter killed and restarted"
        what += f", {loss:.0%} loss, {delay_s * 1e3:.0f} ms delay" if loss else ""
        rows.append(row(what + _versus("default", got), got["ours"], "", baseline=got.get("peer", []), target=0.99))
        if "peer-barrier" in got:
            rows.append(row(f"{what} (peer: barrier)", got["ours"], "", baseline=got["peer-barrier"], target=0.99))
    return rows, [delivery.DEFINITION, CLEAN_FOR_THE_PEER]


def _shared(
    plan: Plan, kind: Kind, count: int, size: int, seed: int, kills: int = 0, loss: float = 0, delay_s: float = 0
) -> list[NodeLog]:
    """One run of nodes that start within 4 s and share from their start on; `kills` of them die during the run."""
    draw = random.Random(seed)
    offsets = [0.0, *(draw.uniform(0, 4) for _ in range(count - 1))]
    seconds, settle_s = plan.scaled(20, 5), 20.0
    rate = (size, 1.0)
    with plan.fleet(kind, count, loss=loss, delay_s=delay_s) as fleet:
        fleet.start(offsets, publish=rate)
        time.sleep(seconds / 2)
        victims = draw.sample(fleet.members[1:], kills)
        for victim in victims:
            fleet.kill(victim)
        time.sleep(2.0 if victims else 0.0)
        for victim in victims:
            fleet.restart(victim, publish=rate)
        for victim in victims:
            victim.child.wait_for("ready")
        time.sleep(seconds / 2)

        def counted(quiet_at: float) -> list[NodeLog]:
            # The public peer's rounds end unevenly: groups shared at the end would count against it unfairly.
            logs = fleet.logs()
            for log in logs:
                log.published = {key: at for key, at in log.published.items() if at < quiet_at - TAIL_S}
            return logs

        # A busy machine may have shared nothing yet.
        until(lambda: any(deliveries(counted(time.time()), window_s=0.0)), settle_s, 0.5)
        quiet_at = time.time()
        fleet.quiet()
        if kind == "ours":
            until(lambda: fraction(list(deliveries(counted(quiet_at)))) == 1.0, settle_s, 0.5)
        time.sleep(delivery.STAY_S)
        return counted(quiet_at)


def latency(plan: Plan) -> Result:
    """Latency from sharing to the verified group at the receiver."""
    count = int(plan.scaled(16, 4))
    figures: dict[Kind, list[list[Delivery]]] = {kind: [] for kind in plan.kinds()}
    for _ in range(plan.repeats):
        for kind in figures:
            size, every_s = (16 * KIB, 0.5) if kind == "ours" else (4 * KIB, 1.0)
            with plan.fleet(kind, count) as fleet:
                fleet.start()
                fleet.settle()
                fleet.publish(size, every_s)
                time.sleep(3.0)
                since = time.time()
                time.sleep(plan.scaled(20, 5))
                before = time.time()
                time.sleep(2.0)
                figures[kind].append(list(deliveries(fleet.logs(), window_s=0.0, since=since, before=before)))
    rows = []
    what = f"publish to delivered, N = {count}, 16 KB, 2/s a node"
    for name, percent, target in (("median", 50, 25.0), ("99th percentile", 99, 250.0)):
        values: dict[Kind, list[float | None]] = {}
        for kind, runs in figures.items():
            values[kind] = [latency_ms(pairs, percent) for pairs in runs]
        rows.append(
            row(
                f"{what}: {name}" + _versus("default, 4 KB", figures),
                values["ours"],
                "ms",
                baseline=values.get("peer", []),
                target=target,
                better="lower",
            )
        )
        if "peer-barrier" in values:
            rows.append(
                row(
                    f"{what}: {name} (peer: barrier, 4 KB)",
                    values["ours"],
                    "ms",
                    baseline=values["peer-barrier"],
                    target=target,
                    better="lower",
                )
            )
    rows.append(row(f"{what}: delivered fraction", [fraction(pairs) for pairs in figures["ours"]], ""))
    notes = ["Latency includes sealing and verification."]
    notes += [PEER_AT_4_KB] if len(figures) > 1 else []
    return rows, notes


def largest(plan: Plan) -> Result:
    """The largest group that arrives three times in a row."""
    inline = [64 * KIB, 256 * KIB, 512 * KIB, 900_000, 1_000_000, MIB]
    by_hash = [2 * MIB, 8 * MIB, 64 * MIB] if not plan.quick else [2 * MIB]
    for_peer = [KIB, 4 * KIB, 8 * KIB, 16 * KIB, 64 * KIB, 256 * KIB]
    ours: list[float | None] = []
    peers: list[float | None] = []
    for _ in range(plan.repeats):
        for kind in plan.kinds(barrier=False):
            with plan.fleet(kind, 2) as fleet:
                fleet.start()
                fleet.settle()
                if kind == "ours":
                    ours.append(_climb(fleet, [*inline, *by_hash], _arrives))
                else:
                    peers.append(_climb(fleet, for_peer, _arrives_at_peer))
    inline_best: list[float | None] = [min(value, MIB) if value is not None else None for value in ours]
    hashed: list[float | None] = [value if value is not None and value > MIB else 0.0 for value in ours]
    rows = [
        row("largest group, inline (1 MiB and less)", inline_best, "bytes", baseline=peers, target=MIB),
        row("largest group, by hash (above 1 MiB; 0: none)", hashed, "bytes", baseline=peers, target=64 * MIB),
    ]
    return rows, ["A size counts when three groups of it in a row arrive; sizes are those of the sealed record."]


def _climb(fleet: Fleet, sizes: Sequence[int], arrives: Callable[[Fleet, int], bool]) -> float | None:
    best: float | None = None
    for size in sizes:
        if not all(arrives(fleet, size) for _ in range(3)):
            break
        best = float(size)
    return best


def _arrives(fleet: Fleet, size: int) -> bool:
    sender, receiver = (member.child for member in fleet.members)
    sender.tell("once", size_bytes=size)
    if not sender.wait_for("once", 120.0)["shared"]:
        return False
    wanted = sender.said("published")[-1]["sequence"]

    def there() -> bool:
        return any(
            sequence == wanted
            for event in receiver.said("got")
            for _, sequence in event["groups"]  # type: ignore[attr-defined]
        )

    return until(there, ARRIVAL_S + 30.0 * size / (64 * MIB), 0.02)


def _arrives_at_peer(fleet: Fleet, size: int) -> bool:
    children = [member.child for member in fleet.members]
    for child in children:
        child.tell("once", size_bytes=size)
    try:
        return all([child.wait_for("once", 20.0)["shared"] for child in children])
    except ChildFailed:
        return False


def stopped(plan: Plan) -> Result:
    """The effect of one stopped process on the others."""
    count = int(plan.scaled(8, 3))
    kept: dict[Kind, list[float | None]] = {kind: [] for kind in plan.kinds(quick=False)}
    slower: dict[Kind, list[float | None]] = {kind: [] for kind in kept}
    seconds = plan.scaled(15, 4)
    for _ in range(plan.repeats):
        for kind in kept:
            with plan.fleet(kind, count) as fleet:
                fleet.start()
                fleet.settle()
                fleet.publish(4 * KIB, 1.0)
                time.sleep(3.0)
                before = _others(fleet, seconds)
                fleet.members[-1].child.signal_tree(signal.SIGSTOP)
                during = _others(fleet, seconds)
                fleet.members[-1].child.signal_tree(signal.SIGCONT)
            kept[kind].append(_ratio(_num_arrived(during), _num_arrived(before)))
            slower[kind].append(_ratio(latency_ms(during, 50), latency_ms(before, 50)))
    what = f"one of {count} stopped (SIGSTOP): rate of groups between the others, of that before"
    rows = [row(what + _versus("default", kept), kept["ours"], "x", baseline=kept.get("peer", []), target=0.95)]
    if "peer-barrier" in kept:
        rows.append(row(f"{what} (peer: barrier)", kept["ours"], "x", baseline=kept["peer-barrier"], target=0.95))
    rows.append(
        row(
            "the same: median latency between the others, of that before" + _versus("default", kept),
            slower["ours"],
            "x",
            baseline=slower.get("peer", []),
        )
    )
    return rows, ["'No effect' on the others' rate is taken as at least 0.95 of it, both windows being short."]


def _others(fleet: Fleet, seconds: float) -> list[Delivery]:
    """Groups that all members except the last exchange from now on."""
    since = time.time()
    time.sleep(seconds)
    before = time.time()
    time.sleep(1.5)
    return [
        pair
        for pair in deliveries(fleet.logs()[:-1], window_s=0.0, since=since, before=before)
        if pair.arrived is not None and pair.arrived < before + 1.5
    ]


def _num_arrived(pairs: Sequence[Delivery]) -> float:
    return float(len(pairs))


def _ratio(value: float | None, of: float | None) -> float | None:
    return value / of if value is not None and of else None


def resources(plan: Plan) -> Result:
    """CPU and memory of a node with its network daemon."""
    count = int(plan.scaled(8, 3))
    cpu: dict[Kind, list[float | None]] = {kind: [] for kind in plan.kinds(barrier=False, quick=False)}
    memory: dict[Kind, list[float | None]] = {kind: [] for kind in cpu}
    for _ in range(plan.repeats):
        for kind in cpu:
            with plan.fleet(kind, count, poll_s=0.25) as fleet:
                fleet.start()
                fleet.settle()
                fleet.publish(16 * KIB if kind == "ours" else 4 * KIB, 1.0)
                time.sleep(2.0)
                children = [member.child for member in fleet.members]
                began, spent = time.monotonic(), sum(child.cpu_s() for child in children)
                time.sleep(plan.scaled(20, 5))
                spent = sum(child.cpu_s() for child in children) - spent
                cpu[kind].append(100 * spent / (time.monotonic() - began) / count)
                memory[kind].append(statistics.mean(child.memory_bytes() for child in children) / MIB)
    what = f"N = {count}, 16 KB, 1/s"
    rows = [
        row(
            f"CPU a node, {what}" + _versus("default, 4 KB", cpu),
            cpu["ours"],
            "% of a core",
            baseline=cpu.get("peer", []),
        ),
        row(
            f"memory a node, {what}" + _versus("default, 4 KB", cpu),
            memory["ours"],
            "MiB",
            baseline=memory.get("peer", []),
        ),
    ]
    notes = [
        "Memory is resident memory of the process and its descendants, with shared pages counted in each; torch, which "
        "hivemind imports, is most of it. Nodes poll for arrivals four times per second here.",
    ]
    return rows, [*notes, PEER_AT_4_KB] if len(cpu) > 1 else notes


def crowd(plan: Plan) -> Result:
    """Many nodes on one machine: discovery, and the cost of each."""
    count = int(plan.scaled(32, 4))
    joined: list[float | None] = []
    got: list[float | None] = []
    cpu: list[float | None] = []
    resident: list[float | None] = []
    own: list[float | None] = []
    for _ in range(plan.repeats):
        with plan.fleet("ours", count) as fleet:
            began = time.monotonic()
            fleet.start()
            met = fleet.settle(120.0)
            joined.append(time.monotonic() - began - SETTLED_S if met else None)
            fleet.publish(4 * KIB, 2.0)
            time.sleep(4.0)
            children = [member.child for member in fleet.members]
            since, began, spent = time.time(), time.monotonic(), sum(child.cpu_s() for child in children)
            time.sleep(plan.scaled(40, 5))
            cpu.append(100 * (sum(child.cpu_s() for child in children) - spent) / (time.monotonic() - began) / count)
            resident.append(statistics.mean(child.memory_bytes() for child in children) / MIB)
            own.append(statistics.mean(child.own_memory_bytes() for child in children) / MIB)
            before = time.time() - TAIL_S
            fleet.quiet()
            time.sleep(plan.scaled(8, 2))
            got.append(fraction(list(deliveries(fleet.logs(), since=since, before=before))))
    what = f"N = {count}, 4 KB, 0.5/s a node"
    return [
        row(f"{what}: from the first start until all are connected with all", joined, "s"),
        row(f"{what}: delivered fraction", got, "", target=0.99),
        row(f"{what}: CPU a node", cpu, "% of a core"),
        row(f"{what}: memory a node, shared pages in part (PSS)", own, "MiB"),
        row(f"{what}: memory a node, shared pages in each (RSS)", resident, "MiB"),
    ], [delivery.DEFINITION, "Memory and CPU are those of the process and its network daemon."]


def loud(plan: Plan) -> Result:
    """A node that publishes valid groups at ten times the others' rate."""
    count = int(plan.scaled(8, 3))
    ratios: list[float | None] = []
    fractions: list[float | None] = []
    for _ in range(plan.repeats):
        with plan.fleet("ours", count) as fleet:
            fleet.start()
            fleet.settle()
            fleet.publish(16 * KIB, 1.0)
            time.sleep(3.0)
            before = _others(fleet, plan.scaled(15, 4))
            fleet.publish(16 * KIB, 0.1, fleet.members[-1:])
            since = time.time()
            during = _others(fleet, plan.scaled(15, 4))
            pairs = list(deliveries(fleet.logs()[:-1], window_s=0.0, since=since, before=time.time() - 1.5))
        ratios.append(_ratio(latency_ms(during, 50), latency_ms(before, 50)))
        fractions.append(fraction(pairs))
    what = f"one of {count} at 10 times the rate (16 KB, 10/s)"
    return [
        row(f"{what}: median latency between the others, of that before", ratios, "x"),
        row(f"{what}: delivered fraction between the others", fractions, "", target=0.99),
    ], []


def offered(plan: Plan) -> Result:
    """Groups that are offered and fetched by those who want them; the baseline are the same groups, sent."""
    # With eight others a node offers from the start.
    count = int(plan.scaled(16, 9))
    found: dict[float, list[Sharing]] = {WANTED: [], 0.0: []}
    for _ in range(plan.repeats):
        for wants, runs in found.items():
            with plan.fleet("ours", count, wants=wants) as fleet:
                fleet.start()
                fleet.settle()
                runs.append(share_for(fleet, 16 * KIB, 1.0, plan.scaled(20, 5)))
    pulled, sent = found[WANTED], found[0.0]
    what = f"N = {count}, 16 KB, 1/s a node, offered, {WANTED:.0%} wanted"
    latencies = [statistics.median(each.latencies_s) if each.latencies_s else None for each in pulled]
    return [
        row(
            f"{what}: fraction of the wanted groups that arrived",
            [_ratio(float(len(each.latencies_s)), each.wanted) for each in pulled],
            "",
            target=0.99,
        ),
        row(f"{what}: shared to verified, median", latencies, "s", target=2.0, better="lower"),
        row(
            f"{what}: groups received a second (baseline: sent)",
            [each.received for each in pulled],
            "1/s",
            baseline=[each.received for each in sent],
        ),
        row(
            f"{what}: bytes that a daemon reads a second (baseline: sent)",
            [each.read_bytes for each in pulled],
            "bytes/s",
            baseline=[each.read_bytes for each in sent],
        ),
    ], ["In the rows 'baseline: sent' the column of the public peer has the same nodes, which send each group to all."]


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
