"""What the page shows: an overview of all nodes, and each node in detail, as JSON."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from swarm.foreign import clean
from swarm.net.roster import PeerRow
from swarm.page import samples
from swarm.page.answer import answer_by_control, answer_by_estimate
from swarm.page.arrivals import Arrivals, Found
from swarm.page.leaderboard import CLAIMS, kinds, leaders
from swarm.page.node import MAX_NAME_CHARS, NodeReader
from swarm.page.sharing import given, sharing, standing, tail
from swarm.reasons import NO_LOSS, sentence
from swarm.telemetry.alerts.checks import worst_first
from swarm.telemetry.alerts.curves import thinned
from swarm.telemetry.history import drop_reasons, num_dropped, pause_in_words
from swarm.telemetry.intervals import accuracy
from swarm.telemetry.live import VERDICT_EVERY_S, state_text
from swarm.telemetry.records import MixDecision
from swarm.telemetry.verdict import worth
from swarm.telemetry.verdict.verdict import Verdict, verdict

MAX_NODES = 256
MAX_ALARMS = 3
MAX_COMPLAINTS = 3
MAX_ROWS = 256
MAX_MOMENTS = 12
MAX_MOMENT_CHARS = 500
POINTS_OF_A_TASK = 60
Json = dict[str, object]


class Site:
    """The nodes that `find` finds now and later. Thread-safe."""

    def __init__(self, find: Callable[[], Sequence[Found]], clock: Callable[[], float] = time.time) -> None:
        """Reads nothing yet; `clock` gives Unix seconds."""
        self._arrivals = Arrivals(find, clock)
        self._clock = clock
        self._lock = threading.Lock()
        self._nodes: dict[Path, NodeReader] = {}
        self._answer: Verdict | None = None
        self._answered_at: float | None = None
        self._overview = b"{}"
        self._details: dict[int, bytes] = {}
        """By place, since the last refresh: several pages may look at one node."""

    def refresh(self) -> bool:
        """Read what is new; returns whether there is anything."""
        with self._lock:
            now = self._clock()
            for found in self._arrivals.new()[: MAX_NODES - len(self._nodes)]:
                self._nodes[found.folder] = NodeReader(found.folder, found.name, found.control)
            changed = any([node.read() for node in self._nodes.values()])
            if self._answered_at is None or now - self._answered_at >= VERDICT_EVERY_S:
                self._answered_at = now
                compared = answer_by_control(self._listed())
                self._answer = compared or (self._answer if self._compared() else None)
            before, self._overview = self._overview, msgspec.json.encode(self._make_overview(now))
            self._details.clear()
            return changed or self._overview != before

    @property
    def overview(self) -> bytes:
        """All nodes in short, the answer, and who gives what to whom."""
        return self._overview

    def detail(self, place: int) -> bytes | None:
        """One node; None where there is none at this place of the overview."""
        with self._lock:
            nodes = self._listed()
            if not 0 <= place < len(nodes):
                return None
            if place not in self._details:
                self._details[place] = msgspec.json.encode(_detail(nodes[place], nodes, self._clock()))
            return self._details[place]

    def samples(self, place: int) -> bytes | None:
        """Its latest samples."""
        with self._lock:
            nodes = self._listed()
            if not 0 <= place < len(nodes):
                return None
            folder, names = nodes[place].folder, _names(nodes)
        return msgspec.json.encode(samples.latest(folder, names))

    def _listed(self) -> list[NodeReader]:
        """In the order in which they were found, which never changes."""
        return list(self._nodes.values())

    def _compared(self) -> bool:
        return any(node.control for node in self._nodes.values())

    def _make_overview(self, now: float) -> Json:
        nodes = self._listed()
        rows = [_row(place, node, now) for place, node in enumerate(nodes)]
        return {
            "answer": self._answer or answer_by_estimate(nodes),
            "alarms": _alarms(nodes, now),
            "nodes": rows,
            "sharing": sharing(nodes),
            "swarm": _swarm(nodes),
        }


def _alarms(nodes: Sequence[NodeReader], now: float) -> list[Json]:
    """The worst alerts of all nodes, each with its node's place."""
    found = worst_first((place, alert) for place, node in enumerate(nodes) for alert in node.alerts(now))
    return [
        {"place": place, "name": nodes[place].name, **msgspec.to_builtins(alert)} for place, alert in found[:MAX_ALARMS]
    ]


def _swarm(nodes: Sequence[NodeReader]) -> Json:
    """The members of the runs that these nodes are in, by their own words where others tell nothing better."""
    return {"claims": CLAIMS, "leaders": leaders(nodes), "kinds": kinds(nodes)}


def _row(place: int, node: NodeReader, now: float) -> Json:
    history = node.history
    event = history.latest
    reward = node.curves.get("reward")
    found = node.alerts(now)
    return {
        "place": place,
        "name": node.name,
        "control": node.control,
        "role": history.role,
        "state": state_text(history, now),
        "round": event.round if event else 0,
        "rounds": history.start.rounds if history.start else None,
        "reward": (reward.recent if reward.recent is not None else reward.last) if reward else None,
        "peers": event.peers if event else 0,
        "tokens_per_s": event.tokens_per_s if event else None,
        "help": worth.in_short(history.worth) if history.worth else "",
        "help_in_time": worth.in_short_by_the_clock(history.worth) if history.worth else "",
        "alerts": len(found),
        "errors": sum(alert.level == "error" for alert in found),
        "version": _policy_version(node),
    }


def _policy_version(node: NodeReader) -> int | None:
    """Of a learner's or worker's weights."""
    event = node.history.latest
    if event is None:
        return None
    if event.learning is not None:
        return event.learning.version
    return event.following.version if event.following is not None else None


def _detail(node: NodeReader, nodes: Sequence[NodeReader], now: float) -> Json:
    history = node.history
    control = next((each for each in nodes if each.control and each.demo == node.demo and each is not node), None)
    curves = {name: curve.points() for name, curve in node.curves.items()}
    if control is not None and "reward" in control.curves:
        curves["control"] = control.curves["reward"].points()
    if control is not None and "accuracy" in control.curves:
        curves["control accuracy"] = control.curves["accuracy"].points()
    known = node.alerts(now)
    return {
        "name": node.name,
        "control": node.control,
        "peer": tail(node.peer_id or ""),
        "folder": clean(str(node.folder)),
        "model": node.model,
        "run": clean(history.start.run_id or "") if history.start else "",
        "answer": verdict([history]) if control is None and not node.control else None,
        "alerts": [msgspec.to_builtins(alert) for alert in known],
        "pause": clean(pause_in_words(history.pause), MAX_MOMENT_CHARS) if history.pause else "",
        "curves": curves,
        "tasks": _tasks(node),
        "groups": _groups(node),
        "given": given(node, nodes),
        "mix": [{"round": each.round, **_mix(each.mix)} for each in reversed(node.decisions)],
        "peers": _peers(node, _names(nodes)),
        "moments": [
            {"time": moment.time, "level": moment.level, "text": clean(moment.text, MAX_MOMENT_CHARS)}
            for moment in reversed([each for each in history.moments if each.level != "debug"][-MAX_MOMENTS:])
        ],
    }


def _mix(decision: MixDecision) -> Json:
    return {
        "policy": clean(decision.policy),
        "local": decision.local,
        "external": decision.external,
        "reason": clean(decision.reason),
    }


def _tasks(node: NodeReader) -> list[Json]:
    """Rewards now and held-out accuracy before and after, with 95% intervals (Wilson)."""
    before, after = node.history.evaluation_before(), node.history.evaluation_after()
    evaluated = [*(before.tasks if before else ()), *(after.tasks if after else ())]
    return [
        {
            "task": clean(task, MAX_NAME_CHARS),
            "reward": curve.recent if curve is not None else None,
            "points": thinned(curve.points(), POINTS_OF_A_TASK) if curve is not None else [],
            "before": accuracy(*before.tasks.get(task, (0, 0))) if before else None,
            "after": accuracy(*after.tasks.get(task, (0, 0))) if after else None,
        }
        for task in sorted({*node.tasks, *evaluated})[:MAX_ROWS]
        for curve in [node.tasks.get(task)]
    ]


def _groups(node: NodeReader) -> Json:
    groups = node.history.groups
    latest = node.history.latest
    drops = [
        {
            "reason": clean(reason, MAX_NAME_CHARS),
            "count": count,
            "means": sentence(reason),
            "loss": reason not in NO_LOSS,
        }
        for reason, count in drop_reasons([groups])[:MAX_ROWS]
    ]
    own = [
        {"reason": clean(reason, MAX_NAME_CHARS), "count": count, "means": sentence(reason)}
        for reason, count in sorted(groups.get("local", {}).items(), key=lambda item: -item[1])[:MAX_ROWS]
    ]
    counts = {name: groups.get(name, 0) for name in ("generated", "shared", "received", "used_local", "used_external")}
    waiting = {"pool": latest.pool if latest else 0, "pending": latest.pending if latest else 0}
    fates = groups["used_external"] + num_dropped(groups) + sum(waiting.values())
    return {**counts, **waiting, "lost": max(0, groups["received"] - fates), "dropped": drops, "own_unused": own}


def _peers(node: NodeReader, names: Mapping[str, str]) -> list[Json]:
    """What the node says of the others, the most useful first."""
    rows = sorted(node.roster.peers if node.roster else (), key=lambda row: row.usefulness, reverse=True)
    senders = node.history.worth.senders if node.history.worth else {}
    return [
        {
            "peer": tail(row.peer_id),
            "name": clean(row.name or names.get(row.peer_id, ""), MAX_NAME_CHARS),
            "standing": standing(row),
            "role": clean(row.role, MAX_NAME_CHARS),
            "model": clean(row.model, MAX_NAME_CHARS),
            "version": clean(row.version, MAX_NAME_CHARS),
            "received": row.received,
            "used": row.used,
            "unused": row.received - row.used,
            "complaints": _complaints(row),
            "bytes": row.bytes,
            "reputation": row.reputation,
            "worth": worth.in_own_groups(senders[row.peer_id]) if row.peer_id in senders else "",
        }
        for row in rows[:MAX_ROWS]
    ]


def _complaints(row: PeerRow) -> str:
    """What counts against a peer, the most frequent first; drops of a healthy swarm do not."""
    against = {reason: count for reason, count in row.dropped.items() if reason not in NO_LOSS}
    most = sorted(against.items(), key=lambda item: -item[1])[:MAX_COMPLAINTS]
    return ", ".join(f"{count:,} {clean(reason, MAX_NAME_CHARS)}" for reason, count in most)


def _names(nodes: Sequence[NodeReader]) -> dict[str, str]:
    """Names by peer id: of the nodes here, and what others call themselves."""
    rosters = [row for node in nodes for row in (node.roster.peers if node.roster else ())]
    named = {row.peer_id: row.name for row in rosters if row.name}
    return named | {node.peer_id: node.name for node in nodes if node.peer_id is not None}
