"""A hostile peer floods a fleet of learners: its records, where they were stopped, and the effect on the others."""

from __future__ import annotations

import json
import math
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.common.children import ROOT, Child, ChildProcesses, Json, until
from benchmarks.network.attacks import KINDS, LYING
from benchmarks.network.delivery import Delivery, NodeLog, deliveries, fraction, latency_ms
from benchmarks.network.fleet import Fleet
from benchmarks.network.learning_node import GROUPS_PER_S, PATIENT_ROUND_S

SIZE_BYTES = 4 * 2**10
"""Characters of honest groups."""
WEIGH_EVERY_S = 1.0
AFTER_S = 12 * PATIENT_ROUND_S
"""Time limit for an honest group, for delivery of the last ones, and again for their regrading."""
PATIENCE = 5.0
"""Factor by which a flood, and what comes before it, may exceed the planned time on a busy machine."""


@dataclass(frozen=True)
class Times:
    """Times of a flood, in Unix seconds."""

    calm: float
    """Start of the period without attack, which ends at `began`."""
    began: float
    ended: float


@dataclass(frozen=True)
class Memory:
    """Bytes of every node with its descendants: means over a window, because of garbage collection."""

    calm: tuple[float, ...]
    second_quarter: tuple[float, ...]
    last_quarter: tuple[float, ...]
    peak: float
    """Of any node at any time."""

    def growth(self) -> tuple[float, float]:
        """Of the worst node, in percent: from before the flood to its last quarter, from its second to its last."""
        return (
            max(100 * (new / old - 1) for old, new in zip(self.calm, self.last_quarter, strict=True)),
            max(100 * (new / old - 1) for old, new in zip(self.second_quarter, self.last_quarter, strict=True)),
        )


class Scale:
    """Samples every node's memory on a separate thread."""

    def __init__(self, children: Sequence[Child]) -> None:
        """Begin."""
        self._children = children
        self._samples: list[tuple[float, tuple[int, ...]]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._weigh, daemon=True)
        self._thread.start()

    def _weigh(self) -> None:
        while not self._stopped.wait(WEIGH_EVERY_S):
            self._samples.append((time.time(), tuple(child.memory_bytes() for child in self._children)))

    def stop(self, times: Times) -> Memory:
        """The samples around a flood at these times."""
        self._stopped.set()
        self._thread.join()
        quarter = (times.ended - times.began) / 4
        return Memory(
            calm=self._means(times.calm, times.began),
            second_quarter=self._means(times.began + quarter, times.began + 2 * quarter),
            last_quarter=self._means(times.ended - quarter, times.ended),
            peak=max((max(sizes) for _, sizes in self._samples), default=math.nan),
        )

    def _means(self, since: float, before: float) -> tuple[float, ...]:
        within = [sizes for at, sizes in self._samples if since <= at < before]
        return tuple(statistics.mean(sizes) for sizes in zip(*within, strict=True)) or (math.nan,) * len(self._children)


@dataclass(frozen=True)
class Outcome:
    """The result of one flood."""

    sent: dict[str, int]
    """Records by kind."""
    assaults: dict[str, int]
    """Service attacks by name."""
    seconds: float
    identities: int
    """Number of identities used; nodes banned all but the last."""
    crashes: int
    """Nodes and daemons that ended."""
    worker_restarts: int
    """Verification workers that were killed or ended."""
    entered: dict[str, int]
    """Hostile groups used in an update, over all nodes, by variant."""
    false_rewards: int
    """Groups used in an update with wrong rewards."""
    trained_twice: int
    """Groups used in more than one update of a node."""
    unaccounted: int
    """Received groups without an outcome in a node's ledger."""
    honest: float | None
    """Delivered fraction of honest groups that were shared during the flood."""
    learned: float | None
    """The same for groups used in an update of the receiver."""
    latency: tuple[float | None, float | None, float | None, float | None]
    """Milliseconds between brisk learners: median and 99th percentile before, and during the flood."""
    memory: Memory
    statuses: list[Json]

    @property
    def num_entered(self) -> int:
        """Groups used in an update that must not be; those with only false rewards may be used."""
        return sum(count for variant, count in self.entered.items() if variant != LYING)

    def fates(self) -> str:
        """The fate of the records in words, by the mean node's counters."""
        count = len(self.statuses)

        def mean(table: str, names: Sequence[str]) -> str:
            totals: Counter[str] = Counter()
            for status in self.statuses:
                counts = status[table]
                assert isinstance(counts, dict)
                totals.update({name: value for name, value in counts.items() if not names or name in names})
            return ", ".join(f"{name} {value / count:.0f}" for name, value in totals.most_common() if value)

        door = ("banned_gossip", "drop_oversized", "drop_inbox", "drop_announced", "duplicates")
        received = statistics.mean(int(str(status["received"])) for status in self.statuses)
        return (
            f"{sum(self.sent.values())} records ({', '.join(f'{kind} {n}' for kind, n in self.sent.items())}) in "
            f"{self.seconds:.0f} s under {self.identities} identities, and besides "
            f"{', '.join(f'{name} {n}' for name, n in self.assaults.items())}. Mean node: dropped on arrival "
            f"{mean('counters', (*door, 'drop_over_budget', 'fetch_failures'))}; reached the exchange, "
            f"honest ones included, {received:.0f}, of which dropped {mean('refused', ())}; verification "
            f"{mean('verifier', ())}; closed {mean('counters', ('banned_connections', 'banned_streams'))}. Hostile "
            f"groups in updates: {', '.join(f'{variant} {n}' for variant, n in self.entered.items()) or 'none'}."
        )


def flood(fleet: Fleet, processes: ChildProcesses, each: int, lying: int, per_s: float, calm_s: float) -> Outcome:
    """Let connected learners share without attack for a while, then under a flood."""
    children = [member.child for member in fleet.members]
    fleet.publish(SIZE_BYTES, 1 / GROUPS_PER_S)
    hostile = _introduce(processes, children)
    hostile.wait_for("informed", PATIENCE * 60.0)
    calm, scale = time.time(), Scale(children)
    time.sleep(calm_s)
    began = time.time()
    hostile.tell("flood", each=each, lying=lying, per_s=per_s)
    done = hostile.wait_for("flooded", 60.0 + PATIENCE * (each * len(KINDS) + lying) / per_s)
    # A short flood on a busy machine is over before anybody's next round.
    until(lambda: bool(_honest(fleet.logs(), Times(calm, began, time.time()))), AFTER_S)
    times = Times(calm, began, time.time())
    memory = scale.stop(times)
    until(lambda: fraction(_honest(fleet.logs(), times)) == 1.0, AFTER_S, 0.5)
    fleet.quiet()
    alive = [child for child in children if child.running]
    until(lambda: not any(child.ask("status")["pending"] for child in alive), AFTER_S, 0.5)
    for child in alive:
        child.ask("remainder")
    return _outcome(fleet, times, done, memory, [child.ask("status") for child in alive])


def _outcome(fleet: Fleet, times: Times, done: Json, memory: Memory, statuses: list[Json]) -> Outcome:
    logs = fleet.logs()
    brisk = [log for log, member in zip(logs, fleet.members, strict=True) if not member.spec.patient]
    calm = list(deliveries(brisk, window_s=0.0, since=times.calm, before=times.began))
    meanwhile = _honest(brisk, times)
    honest = _honest(logs, times)
    trained = [_trained(member.child) for member in fleet.members]
    learned = {
        (log.peer_id, peer_id, sequence)
        for log, groups in zip(logs, trained, strict=True)
        for peer_id, sequence, _, _ in groups
    }
    everything = [group for groups in trained for group in groups]
    restarts = sum(_count(status, "counters", "daemon_restarts") for status in statuses)
    return Outcome(
        sent={kind: int(count) for kind, count in dict(done["sent"]).items()},  # type: ignore[call-overload]
        assaults={name: int(count) for name, count in dict(done["assaults"]).items()},  # type: ignore[call-overload]
        seconds=float(str(done["seconds"])),
        identities=int(str(done["identities"])),
        crashes=len(fleet.members) - len(statuses) + restarts,
        worker_restarts=sum(_count(status, "verifier", "restarts") for status in statuses),
        entered=dict(Counter(label for _, _, label, _ in everything if label)),
        false_rewards=sum(not true for _, _, _, true in everything),
        trained_twice=len(everything) - len(learned),
        unaccounted=sum(abs(int(str(status["unaccounted"]))) for status in statuses),
        honest=fraction(honest),
        learned=sum((pair.receiver, *pair.key) in learned for pair in honest) / len(honest) if honest else None,
        latency=(latency_ms(calm, 50), latency_ms(calm, 99), latency_ms(meanwhile, 50), latency_ms(meanwhile, 99)),
        memory=memory,
        statuses=statuses,
    )


def _honest(logs: Sequence[NodeLog], times: Times) -> list[Delivery]:
    return list(deliveries(logs, window_s=0.0, since=times.began, before=times.ended))


def _introduce(processes: ChildProcesses, children: Sequence[Child]) -> Child:
    """A hostile peer that is connected to everybody."""
    command = [sys.executable, "-m", "benchmarks.network.hostile", json.dumps({"folder": str(processes.folder)})]
    hostile = processes.start("hostile", command, {"PYTHONPATH": str(ROOT)})
    hostile.wait_for("warm")
    addresses = [
        address
        for child in children
        for address in _list(child.said("ready")[0]["addresses"])
        if "/127.0.0.1/" in str(address)
    ]
    hostile.tell("start", run_id=children[0].ask("status")["run_id"], addresses=addresses)
    hostile.wait_for("ready")
    return hostile


def _count(status: Json, table: str, name: str) -> int:
    counts = status[table]
    assert isinstance(counts, dict)
    return int(counts.get(name, 0))


def _trained(child: Child) -> list[tuple[str, int, str, bool]]:
    events = child.said("trained") + child.said("remainder")
    return [_group(group) for event in events for group in _list(event["groups"])]


def _group(value: object) -> tuple[str, int, str, bool]:
    peer_id, sequence, label, true = _list(value)
    return str(peer_id), int(str(sequence)), str(label), bool(true)


def _list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value
