"""How fast a learner's snapshot reaches its workers: relayed by workers, and from the learner alone.

    python -m benchmarks.broadcast [--quick] [--out FILE] [--only NAME ...] [--workers N ...] [--repeats N]
        [--links buckets]

Every node is a process with its own daemon. Links are network namespaces shaped with `tc tbf` where allowed; otherwise
only the nodes' own rate limits apply. The learner's uplink is four times that of a worker.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from benchmarks.broadcast.links import CONGESTION, Links, missing
from benchmarks.broadcast.node import Spec
from benchmarks.common.children import Child, ChildFailed, ChildProcesses, until
from benchmarks.common.report import Report, row
from benchmarks.common.running import Result, at_least_one, conclude, measure, option_parser, scratch, wide_console

NODE = [sys.executable, "-m", "benchmarks.broadcast.node"]
DAEMONS = [sys.executable, "-m", "benchmarks.broadcast.daemons"]
SOCKETS = [sys.executable, "-m", "benchmarks.broadcast.sockets"]
CHANGE = [sys.executable, "-m", "benchmarks.broadcast.change"]
UPLINKS = 4
"""The learner's uplink, in multiples of a worker's."""
MIB = 2**20
START_TIMEOUT_S = 300.0
WITHIN = 1.25
"""Of the lower bound, at 16 workers."""
GROWTH = 1.2
"""From 4 to 32 workers."""
REROUTE_S = 2.0


@dataclass(frozen=True)
class Plan:
    """The size of a run."""

    quick: bool
    repeats: int
    namespaces: bool
    """Links shaped by the kernel; otherwise only the nodes' own limits."""
    folder: Path
    counts: tuple[int, ...]
    """Numbers of workers."""

    @property
    def rate(self) -> int:
        """A worker's link, bytes per second each way: the most that two cores can fill for 32 workers and a learner."""
        return MIB // 2

    @property
    def num_bytes(self) -> int:
        """Bytes of a snapshot over limited links."""
        return (2 if self.quick else 12) * MIB

    @property
    def bound_s(self) -> float:
        """No broadcast can be faster: a worker's link carries the snapshot once, and the learner's at least once."""
        return self.num_bytes / self.rate


class Swarm:
    """A learner with connected workers, for consecutive broadcasts."""

    def __init__(self, learner: Child, workers: list[Child], learner_id: str, peers: dict[str, Child]) -> None:
        """Nodes that have started."""
        self.learner = learner
        self.workers = workers
        self.peers = peers
        self.present = [learner, *workers]
        """Nodes that were not killed or stopped."""
        self._learner_id = learner_id
        self._version = 0

    def broadcast(
        self, workers: Sequence[Child], num_bytes: int, *, star: bool = False, during: Callable[[], None] | None = None
    ) -> dict[str, float]:
        """Seconds from publication until each of these workers has the snapshot, by name, without dead ones.

        `during` is called once the broadcast has started. Raises `ChildFailed`.
        """
        nodes = [self.learner, *workers]
        # A remaining one would still serve chunks, or request a place.
        for node in self.present:
            node.tell("leave")
        for node in self.present:
            node.wait_for("left")
        for node in nodes:
            node.tell("follow", learner=self._learner_id, star=star)
        for node in nodes:
            node.wait_for("following")
        placed = until(lambda: self.learner.ask("status")["placed"] == len(workers), 60.0)
        # The others learn changes of the plan at their next poll; publication informs all.
        if not placed:
            raise ChildFailed("not all workers have found the learner")
        self._version += 1
        self.learner.tell("publish", version=self._version, num_bytes=num_bytes)
        published = self.learner.wait_for("published")
        began = float(str(published["at"]))
        if during is not None:
            during()
        took = {}
        for worker in workers:
            if not worker.running:
                continue
            installed = worker.wait_for("installed", START_TIMEOUT_S)
            if (installed["version"], installed["digest"]) != (self._version, published["digest"]):
                raise ChildFailed(f"{worker.name} has installed something else: {installed}")
            took[worker.name] = float(str(installed["at"])) - began
        return took

    def status(self, worker: Child) -> dict[str, object]:
        """Of one node."""
        return worker.ask("status")


@contextmanager
def swarm(plan: Plan, num_workers: int, uplinks: int | None = UPLINKS) -> Iterator[Swarm]:
    """Start all nodes; without `uplinks` nothing is limited. Raises `ChildFailed`."""
    folder = Path(tempfile.mkdtemp(dir=plan.folder))
    with ExitStack() as stack:
        links = stack.enter_context(Links()) if plan.namespaces and uplinks is not None else None
        processes = stack.enter_context(ChildProcesses(folder))
        nodes, listen = [], []
        for index in range(num_workers + 1):
            name = f"node-{index}"
            rate = None if uplinks is None else plan.rate * (uplinks if index == 0 else 1)
            address = links.add(name, rate) if links is not None and rate is not None else "127.0.0.1"
            command = [*(links.on(name) if links is not None else []), *NODE]
            spec = Spec(str(folder), name, rate, founder=index == 0)
            nodes.append(processes.start(name, [*command, spec.as_argument()]))
            listen.append(f"/ip4/{address}/tcp/0")
        for node in nodes:
            node.wait_for("warm", START_TIMEOUT_S)
        peers: dict[str, Child] = {}
        bootstrap: list[object] = []
        for node, where in zip(nodes, listen, strict=True):
            node.tell("start", bootstrap=bootstrap, listen=where)
            ready = node.wait_for("ready", START_TIMEOUT_S)
            peers[str(ready["peer_id"])] = node
            if not bootstrap:
                addresses = ready["addresses"]
                assert isinstance(addresses, list)
                bootstrap = addresses
        connected = until(lambda: int(str(nodes[0].ask("status")["connected"])) >= num_workers, START_TIMEOUT_S)
        if not connected:
            raise ChildFailed("not all workers are connected to the learner")
        yield Swarm(nodes[0], nodes[1:], next(iter(peers)), peers)


def capped(plan: Plan) -> Result:
    """Relayed and star distribution over limited links."""
    ours: dict[int, list[float | None]] = {count: [] for count in plan.counts}
    star: dict[int, list[float | None]] = {count: [] for count in plan.counts}
    with swarm(plan, max(plan.counts)) as nodes:
        nodes.broadcast(nodes.workers, MIB // 4)
        for repeat in range(plan.repeats):
            for count in plan.counts:
                ours[count].append(_within_95(nodes, count, plan))
                # The star takes N times as long, and repeats add no information.
                if repeat == 0:
                    star[count].append(_within_95(nodes, count, plan, star=True))
    rows = [
        row(f"{count} workers: 95% have installed it", ours[count], "s", baseline=star[count]) for count in plan.counts
    ]
    for count in plan.counts:
        times = [took and took / plan.bound_s for took in ours[count]]
        aim = WITHIN if count == 16 else None
        rows.append(row(f"{count} workers: that time / lower bound", times, "x", target=aim, better="lower"))
    few, many = plan.counts[0], plan.counts[-1]
    rows.append(
        row(
            f"time at {many} workers / time at {few}",
            [_ratio(late, early) for early, late in zip(ours[few], ours[many], strict=True)],
            "x",
            baseline=[_ratio(star[many][0], star[few][0])],
            target=GROWTH,
            better="lower",
        )
    )
    return rows, [
        f"Snapshots of {plan.num_bytes / MIB:.0f} MiB, workers' links {plan.rate / MIB:g} MiB/s each way, the "
        f"learner's {UPLINKS} times that: the lower bound max(M/U, M/b) is {plan.bound_s:.3g} s. {_links(plan)}",
        "The star: the learner serves all workers itself, with the same code and limits.",
    ]


def killed(plan: Plan) -> Result:
    """One relay killed, and one stopped, during a broadcast."""
    count = 4 if plan.quick else 8
    rows, delays = [], {"killed": [], "frozen": []}  # type: ignore[var-annotated]
    complete = {"killed": [], "frozen": []}  # type: ignore[var-annotated]
    signals = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}
    for _ in range(plan.repeats):
        with swarm(plan, count, uplinks=2) as nodes:
            undisturbed = max(nodes.broadcast(nodes.workers, plan.num_bytes).values())
            present = nodes.present
            for how in ("killed", "frozen"):
                victim: list[Child] = []

                def hit(how: str = how, victim: list[Child] = victim) -> None:
                    victim.append(_a_relay(nodes, plan.bound_s / 3))
                    victim[0].signal_tree(signals[how])

                took, num_others = _disturbed(nodes, present[1:], plan, hit, victim)
                complete[how].append(len(took) / num_others)
                delays[how].append(max(took.values()) - undisturbed)
                present.remove(victim[0])
    for how in ("killed", "frozen"):
        rows.append(row(f"a relay {how} in mid-broadcast: others that complete", complete[how], "", target=1.0))
        rows.append(row(f"a relay {how}: the last one is later by", delays[how], "s", target=REROUTE_S, better="lower"))
    return rows, [
        f"Relays: {count} workers in two chains; the first of one, which serves others, is hit after a third of the "
        "time. `frozen`: it and its daemon are stopped, its connections stay open. Later than the undisturbed "
        "broadcast of the same nodes; a worker behind it must receive its missing chunks at the same rate."
    ]


def _disturbed(
    nodes: Swarm, workers: Sequence[Child], plan: Plan, hit: Callable[[], None], victim: list[Child]
) -> tuple[dict[str, float], int]:
    """Seconds of the others, without the node that was hit."""

    def hit_and_leave() -> None:
        hit()
        others.remove(victim[0])

    others = list(workers)
    took = nodes.broadcast(others, plan.num_bytes, during=hit_and_leave)
    return took, len(others)


def _a_relay(nodes: Swarm, after_s: float) -> Child:
    """A worker that the learner serves and that serves another, during the broadcast."""
    time.sleep(after_s)
    feeds = nodes.learner.ask("status")["feeds"]
    assert isinstance(feeds, list)
    for peer_id in feeds:
        if nodes.peers[peer_id].ask("status")["feeds"]:
            return nodes.peers[peer_id]
    raise ChildFailed("no worker relays")


def unlimited(plan: Plan) -> Result:
    """Compared with plain TLS sockets between as many processes, and with the daemons alone."""
    rows = []
    num_bytes = (16 if plan.quick else 128) * MIB
    for count in (1, 4):
        ours, sockets, daemons = [], [], []
        with swarm(plan, count, uplinks=None) as nodes:
            nodes.broadcast(nodes.workers, MIB)
            for _ in range(plan.repeats):
                ours.append(num_bytes / MIB / max(nodes.broadcast(nodes.workers, num_bytes).values()))
                sockets.append(num_bytes / MIB / _over_sockets(plan, count, num_bytes))
                daemons.append(num_bytes / MIB / _over_daemons(plan, count, num_bytes))
        rows.append(row(f"{count} workers, unlimited links: a node", ours, "MiB/s", baseline=sockets))
        parts = [one / other for one, other in zip(ours, sockets, strict=True)]
        rows.append(row(f"{count} workers: part of a TLS socket's rate", parts, "x", target=0.5))
        rows.append(row(f"{count} workers: the daemons alone", daemons, "MiB/s", baseline=sockets))
    return rows, [
        f"Unlimited: {num_bytes / MIB:.0f} MiB, from publication until the last worker has it verified and on disk, so "
        "with cutting, hashing and signing. The sockets: one sender, a process for each receiver, all at once, "
        "into memory and unhashed. The daemons alone: the same through one stream to each of the receivers' daemons, "
        "also unhashed: the rate that the network daemon itself allows. All processes share this "
        "machine's cores."
    ]


def _over_sockets(plan: Plan, count: int, num_bytes: int) -> float:
    """Seconds until the last has it."""
    with ChildProcesses(Path(tempfile.mkdtemp(dir=plan.folder))) as processes:
        server = processes.start("server", [*SOCKETS, "serve", str(num_bytes), str(count)])
        port = str(server.wait_for("ready")["port"])
        clients = [processes.start(f"client-{i}", [*SOCKETS, "fetch", port, str(num_bytes)]) for i in range(count)]
        return max(float(str(client.wait_for("fetched")["seconds"])) for client in clients)


def _over_daemons(plan: Plan, count: int, num_bytes: int) -> float:
    """Seconds until the last has it."""
    with ChildProcesses(Path(tempfile.mkdtemp(dir=plan.folder))) as processes:
        server = processes.start("server", [*DAEMONS, "serve", str(num_bytes)])
        address = str(server.wait_for("ready")["address"])
        clients = [processes.start(f"client-{i}", [*DAEMONS, "fetch", address, str(num_bytes)]) for i in range(count)]
        for client in clients:
            client.wait_for("ready")
        for client in clients:
            client.tell("go")
        return max(float(str(client.wait_for("fetched")["seconds"])) for client in clients)


def change(plan: Plan) -> Result:
    """The size of a step's delta."""
    folder = Path(tempfile.mkdtemp(dir=plan.folder))
    model = "0.13 M" if plan.quick else "25 M"
    with ChildProcesses(folder) as processes:
        child = processes.start("change", [*CHANGE, str(folder), model, "2" if plan.quick else "4"])
        changed = [child.wait_for("changed", 1800.0) for _ in range(3)]
    rows = []
    for event in changed:
        weights, full, part = (int(str(event[name])) for name in ("weights", "full", "change"))
        what, whole = f"{event['precision']}: a step's change", [full / weights]
        rows.append(row(what, [part / weights], "B/weight", baseline=whole))
    return rows, [
        f"Change: one update of a policy of {model} parameters with the default objective and learning rate (1e-6, "
        "AdamW), after others; random weights, float32 training. Lossless for the sent bytes: `bfloat16` and "
        "`int8` are the weights rounded to that type. The baseline column is the whole snapshot in that precision.",
    ]


MEASUREMENTS: dict[str, Callable[[Plan], Result]] = {
    "capped": capped,
    "killed": killed,
    "unlimited": unlimited,
    "change": change,
}


def _within_95(nodes: Swarm, count: int, plan: Plan, *, star: bool = False) -> float | None:
    """Seconds until 95% of the workers have a snapshot; None when not all get it."""
    try:
        times = sorted(nodes.broadcast(nodes.workers[:count], plan.num_bytes, star=star).values())
    except ChildFailed as error:
        print(f"      {count} workers: {error}", flush=True)
        return None
    within = times[ceil(0.95 * len(times)) - 1]
    print(f"      {count} workers, {'star' if star else 'relayed'}: {within:.2f} s", flush=True)
    return within


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other is not None else None


def _links(plan: Plan) -> str:
    if plan.namespaces:
        return (
            "Links are shaped by the kernel, headers included; the nodes limit themselves to the same rates. TCP's "
            f"congestion control is {CONGESTION}."
        )
    return "The nodes limit themselves; links are the machine's own."


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; 130 when interrupted."""
    parser = option_parser("broadcast", __doc__, MEASUREMENTS)
    parser.add_argument(
        "--workers", nargs="+", type=at_least_one, metavar="N", help="default 4 8 16 32, with --quick 2 4"
    )
    parser.add_argument("--repeats", type=at_least_one, help="of every measurement; default 3, with --quick 1")
    parser.add_argument(
        "--links", choices=("auto", "namespaces", "buckets"), default="auto", help="how links are limited; default auto"
    )
    options = parser.parse_args(arguments)
    problem = missing() if options.links != "buckets" else "not wanted"
    if problem and options.links == "namespaces":
        parser.error(problem)
    report, console = Report("broadcast", peer="baseline"), wide_console()
    counts = tuple(sorted(options.workers or ((2, 4) if options.quick else (4, 8, 16, 32))))

    def take() -> int:
        with scratch() as folder:
            repeats = options.repeats or (1 if options.quick else 3)
            plan = Plan(options.quick, repeats, problem is None, Path(folder), counts)
            return measure(MEASUREMENTS, options.only, plan, report, console, quick=plan.quick)

    return conclude(take, report, options, console)


if __name__ == "__main__":
    sys.exit(main())
