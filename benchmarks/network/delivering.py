"""Which groups arrive, and when: nodes that start, die and restart, and groups that are offered and fetched."""

from __future__ import annotations

import random
import statistics
import time

from benchmarks.common.children import until
from benchmarks.common.report import Row, row
from benchmarks.common.running import Result
from benchmarks.network import delivery
from benchmarks.network.delivery import TAIL_S, Delivery, NodeLog, deliveries, fraction, latency_ms, ratio
from benchmarks.network.fleet import Kind
from benchmarks.network.offered import WANTED, Sharing, share_for
from benchmarks.network.plan import KIB, PEER_AT_4_KB, Plan, versus

CLEAN_FOR_THE_PEER = (
    "The public peer gets a network without loss or delay in every row: its transport cannot be reached from outside."
)


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
    rows = [row(what + versus("default", got), got["ours"], "", baseline=got.get("peer", []), target=0.999)]
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
        rows.append(row(what + versus("default", got), got["ours"], "", baseline=got.get("peer", []), target=0.99))
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
                f"{what}: {name}" + versus("default, 4 KB", figures),
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
            [ratio(float(len(each.latencies_s)), each.wanted) for each in pulled],
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
