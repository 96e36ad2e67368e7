"""What a node bears and costs: large groups, a stopped or loud neighbour, processor and memory, many nodes."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable, Sequence

from benchmarks.common.children import ChildFailed, until
from benchmarks.common.report import row
from benchmarks.common.running import Result
from benchmarks.network import delivery
from benchmarks.network.delivery import TAIL_S, Delivery, deliveries, fraction, latency_ms, ratio
from benchmarks.network.fleet import SETTLED_S, Fleet, Kind
from benchmarks.network.plan import KIB, MIB, PEER_AT_4_KB, Plan, versus

ARRIVAL_S = 30.0
"""For a group of any size: long enough that a busy machine does not count as a limit."""


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
            kept[kind].append(ratio(_num_arrived(during), _num_arrived(before)))
            slower[kind].append(ratio(latency_ms(during, 50), latency_ms(before, 50)))
    what = f"one of {count} stopped (SIGSTOP): rate of groups between the others, of that before"
    rows = [row(what + versus("default", kept), kept["ours"], "x", baseline=kept.get("peer", []), target=0.95)]
    if "peer-barrier" in kept:
        rows.append(row(f"{what} (peer: barrier)", kept["ours"], "x", baseline=kept["peer-barrier"], target=0.95))
    rows.append(
        row(
            "the same: median latency between the others, of that before" + versus("default", kept),
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
            f"CPU a node, {what}" + versus("default, 4 KB", cpu),
            cpu["ours"],
            "% of a core",
            baseline=cpu.get("peer", []),
        ),
        row(
            f"memory a node, {what}" + versus("default, 4 KB", cpu),
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
        ratios.append(ratio(latency_ms(during, 50), latency_ms(before, 50)))
        fractions.append(fraction(pairs))
    what = f"one of {count} at 10 times the rate (16 KB, 10/s)"
    return [
        row(f"{what}: median latency between the others, of that before", ratios, "x"),
        row(f"{what}: delivered fraction between the others", fractions, "", target=0.99),
    ], []
