"""What the page shows as JSON: an overview of all nodes, each node in detail, and its samples.

Texts of untrusted peers are cut and cleaned of control characters here; the page makes no markup of any text.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from swarm.net.roster import PeerRow
from swarm.reasons import NO_LOSS, sentence
from swarm.sanitize import clean, clean_lines
from swarm.telemetry.alerts import worst_first
from swarm.telemetry.benefit.verdict import Verdict, in_own_groups, verdict, with_interval
from swarm.telemetry.curves import thinned
from swarm.telemetry.history import PeerHistory, drop_reasons, num_dropped, pause_in_words
from swarm.telemetry.intervals import accuracy
from swarm.telemetry.live import VERDICT_EVERY_S, state_text
from swarm.telemetry.nodes import CLAIMS, CREDIT, Arrivals, Found, NodeReader, credited, kinds, leaders, short, tail
from swarm.telemetry.records import EvaluationEvent
from swarm.telemetry.samples import SampledCompletion, SampleRecord, folded, read, why
from swarm.types import Sample
from swarm.types.thumbnails import as_url

ASSETS = Path(__file__).parent / "assets"
MAX_NODES = 256
MAX_ALARMS = 3
MAX_COMPLAINTS = 3
MAX_ROWS = 256
MAX_MOMENTS = 12
MAX_MOMENT_CHARS = 500
POINTS_OF_A_TASK = 60
DAY_S = 86_400
LEAST_OF_A_DAY_S = 3_600.0
"""Seconds of a run before its traffic is extrapolated to a day."""
MAX_MEMBERS = 256
"""Drawn at most, the most useful; all others are only counted."""
READ_BYTES = 2**20
MAX_SAMPLES = 40
MAX_PER_OUTCOME = 12
"""So that the most frequent outcome does not displace the others."""
MAX_TEXT_CHARS = 1_000
"""For a question, and for a completion."""
MAX_COMPLETIONS = 8
MAX_ANSWER_CHARS = 200
MAX_PICTURES = 8
"""For a question, and for a completion."""
MAX_ANSWERS = 4
Json = Mapping[str, object]
Standing = Literal["here", "connected", "away", "isolated"]


class Site:
    """The nodes that `find` finds now and later. Thread-safe."""

    def __init__(self, find: Callable[[], Sequence[Found]], clock: Callable[[], float] = time.time) -> None:
        """Reads nothing yet; `clock` gives Unix seconds."""
        self._arrivals = Arrivals(find, clock)
        self._clock = clock
        self._lock = threading.Lock()
        self._nodes: dict[Path, NodeReader] = {}
        """In the order in which they were found, which never changes."""
        self._answer: Verdict | None = None
        self._answered_at = 0.0
        self._overview = b"{}"
        self._details: dict[int, bytes] = {}
        """Cached by index since the last refresh: several pages may look at one node."""

    def refresh(self) -> bool:
        """Read new data; returns whether there is any."""
        with self._lock:
            now = self._clock()
            for found in self._arrivals.new()[: MAX_NODES - len(self._nodes)]:
                self._nodes[found.folder] = NodeReader(found.folder, found.name, found.control)
            nodes = list(self._nodes.values())
            changed = any([node.read() for node in nodes])
            if self._answer is None or now - self._answered_at >= VERDICT_EVERY_S:
                self._answered_at = now
                self._answer = verdict([node.history for node in nodes])
            before, self._overview = self._overview, msgspec.json.encode(overview(nodes, self._answer, now))
            self._details.clear()
            return changed or self._overview != before

    @property
    def overview(self) -> bytes:
        """See the function of this name."""
        return self._overview

    def detail(self, index: int) -> bytes | None:
        """One node; None where the overview has no such row."""
        with self._lock:
            nodes = list(self._nodes.values())
            if not 0 <= index < len(nodes):
                return None
            if index not in self._details:
                self._details[index] = msgspec.json.encode(detail(nodes[index], nodes, self._clock()))
            return self._details[index]

    def samples(self, index: int) -> bytes | None:
        """Its latest samples; None where the overview has no such row."""
        with self._lock:
            nodes = list(self._nodes.values())
            return msgspec.json.encode(samples(nodes[index], nodes)) if 0 <= index < len(nodes) else None


def overview(nodes: Sequence[NodeReader], answer: Verdict, now: float) -> Json:
    """All nodes in short, the verdict, the worst alerts, who gives groups to whom, and the members of the runs."""
    alarms = worst_first((index, alert) for index, node in enumerate(nodes) for alert in node.alerts(now))
    return {
        "answer": answer,
        "alarms": [{"name": nodes[index].name, **msgspec.to_builtins(alert)} for index, alert in alarms[:MAX_ALARMS]],
        "nodes": [_row(index, node, now) for index, node in enumerate(nodes)],
        "sharing": sharing(nodes),
        "swarm": {
            "claims": CLAIMS,
            "leaders": leaders(nodes),
            "about_credit": CREDIT,
            "credit": credited(nodes),
            "kinds": kinds(nodes),
        },
    }


def _row(index: int, node: NodeReader, now: float) -> Json:
    history = node.history
    event = history.latest
    reward = node.curves.get("reward")
    weights = node.curves.get("weights")
    found = node.alerts(now)
    worth = history.worth
    return {
        "index": index,
        "name": node.name,
        "control": node.control,
        "role": history.role,
        "state": state_text(history, now),
        "round": event.round if event else 0,
        "rounds": history.start.rounds if history.start else None,
        "reward_first": history.reward_first(),
        "reward": (reward.recent if reward.recent is not None else reward.last) if reward else None,
        "accuracy_before": _accuracy(history.evaluation_before()),
        "accuracy": _accuracy(history.evaluation_after()),
        "peers": event.peers if event else 0,
        "tokens_per_s": event.tokens_per_s if event else None,
        "help": with_interval(worth.help) if worth else "",
        "help_in_time": with_interval(worth.help_in_time) if worth else "",
        "alerts": len(found),
        "errors": sum(alert.level == "error" for alert in found),
        "version": weights.last if weights else None,
    }


def _accuracy(event: EvaluationEvent | None) -> tuple[float, float, float] | None:
    """With its 95% interval (Wilson) over the questions of all tasks."""
    counts = list(event.tasks.values()) if event else []
    return accuracy(sum(right for right, _ in counts), sum(asked for _, asked in counts))


def detail(node: NodeReader, nodes: Sequence[NodeReader], now: float) -> Json:
    """One of the nodes with everything in its directory."""
    history = node.history
    latest = history.latest
    return {
        "name": node.name,
        "control": node.control,
        "peer": tail(node.peer_id or ""),
        "folder": clean(str(node.folder)),
        "model": node.model,
        "run": clean(history.start.run_id or "") if history.start else "",
        "tokens": latest.tokens_generated if latest else 0,
        "seconds": history.wall_s,
        "restarts": history.restarts,
        "alerts": [msgspec.to_builtins(alert) for alert in node.alerts(now)],
        "pause": clean(pause_in_words(history.pause), MAX_MOMENT_CHARS) if history.pause else "",
        "curves": _curves(node, nodes),
        "learning": _learning(history),
        "tasks": _tasks(node),
        "suites": _suites(history),
        "groups": _groups(node),
        "given": given(node, nodes),
        "traffic": _traffic(history),
        "mix": [
            {
                "round": each.round,
                "policy": clean(each.mix.policy),
                "local": each.mix.local,
                "external": each.mix.external,
                "reason": clean(each.mix.reason),
            }
            for each in reversed(history.figures.decisions)
        ],
        "peers": _peers(node, _names(nodes)),
        "moments": [
            {"time": moment.time, "level": moment.level, "text": clean(moment.text, MAX_MOMENT_CHARS)}
            for moment in reversed([each for each in history.moments if each.level != "debug"][-MAX_MOMENTS:])
        ],
    }


def _curves(node: NodeReader, nodes: Sequence[NodeReader]) -> dict[str, list[tuple[int, float]]]:
    """The node's, with reward and accuracy of the control and the mean of its demo's nodes."""
    curves = {name: curve.points() for name, curve in node.curves.items()}
    demo = [each for each in nodes if each.history.demo == node.history.demo]
    control = next((each for each in demo if each.control and each is not node), None)
    learners = [each for each in demo if not each.control and each.history.role != "worker"]
    for figure, name in (("reward", "control"), ("accuracy", "control accuracy")):
        if control is not None and figure in control.curves:
            curves[name] = control.curves[figure].points()
    if len(learners) > 1:
        by_round: dict[int, list[float]] = {}
        for each in learners:
            for round, value in each.curves["reward"].points() if "reward" in each.curves else ():
                by_round.setdefault(round, []).append(value)
        curves["all nodes"] = [(round, sum(by_round[round]) / len(by_round[round])) for round in sorted(by_round)]
    return curves


def _learning(history: PeerHistory) -> list[tuple[str, float | None, float | None]]:
    """A learner's figures: (name, measured, predicted or allowed by the overlap model of arXiv:2602.02192)."""
    figures = history.latest.learning if history.latest else None
    if figures is None:
        return []
    return [
        ("largest staleness, versions", history.max_lag, figures.max_staleness),
        ("part of its time that the learner waited", figures.bubble, figures.predicted_bubble),
        ("rollouts per second", figures.rate, figures.required_rate),
        ("training seconds per step", figures.train_s, None),
        ("seconds per broadcast", figures.broadcast_s, None),
        ("active workers", figures.active, figures.workers),
    ]


def _tasks(node: NodeReader) -> list[Json]:
    """Rewards now and held-out accuracy before and after, with 95% intervals (Wilson)."""
    curves = node.history.figures.tasks
    before, after = node.history.evaluation_before(), node.history.evaluation_after()
    evaluated = [*(before.tasks if before else ()), *(after.tasks if after else ())]
    return [
        {
            "task": short(task),
            "reward": curve.recent if curve is not None else None,
            "points": thinned(curve.points(), POINTS_OF_A_TASK) if curve is not None else [],
            "before": accuracy(*before.tasks.get(task, (0, 0))) if before else None,
            "after": accuracy(*after.tasks.get(task, (0, 0))) if after else None,
        }
        for task in sorted({*curves, *evaluated})[:MAX_ROWS]
        for curve in [curves.get(task)]
    ]


def _suites(history: PeerHistory) -> Sequence[Json]:
    """Each figure of each suite before the first round and of the latest policy evaluated, with 95% intervals."""
    return [
        {
            "figure": short(f"{name} {figure}"),
            "before": before.scores.figures.get(figure) if before else None,
            "latest": found,
            "round": latest.round,
            "questions": latest.scores.num_questions,
        }
        for name in history.suites
        for before, latest in [(history.suite_before(name), history.suite_after(name))]
        for figure, found in latest.scores.figures.items()
    ][:MAX_ROWS]


def _groups(node: NodeReader) -> Json:
    groups = node.history.groups
    latest = node.history.latest
    drops = [
        {"reason": short(reason), "count": count, "means": sentence(reason), "loss": reason not in NO_LOSS}
        for reason, count in drop_reasons([groups])[:MAX_ROWS]
    ]
    own = [
        {"reason": short(reason), "count": count, "means": sentence(reason)}
        for reason, count in sorted(groups.get("local", {}).items(), key=lambda item: -item[1])[:MAX_ROWS]
    ]
    names = ("generated", "shared", "received", "checked", "used_local", "used_external")
    waiting = {"pool": latest.pool if latest else 0, "pending": latest.pending if latest else 0}
    fates = groups["used_external"] + num_dropped(groups) + sum(waiting.values())
    lost = max(0, groups["received"] - fates)
    counts = {name: groups.get(name, 0) for name in names} | waiting
    return {**counts, "lost": lost, "dropped": drops, "own_unused": own}


def _traffic(history: PeerHistory) -> Json:
    """Bytes of records sent and received, and a day at this rate once the run is long enough."""
    days = history.wall_s / DAY_S if history.wall_s >= LEAST_OF_A_DAY_S else None
    return {
        name: {"bytes": moved, "a_day": None if days is None else moved / days}
        for name, moved in history.figures.traffic.items()
    }


def _peers(node: NodeReader, names: Mapping[str, str]) -> list[Json]:
    """The other members as the node knows them, the most useful first."""
    rows = sorted(node.roster.peers if node.roster else (), key=lambda row: row.usefulness, reverse=True)
    senders = node.history.worth.senders if node.history.worth else {}
    figures = node.history.latest.figures if node.history.latest else {}
    return [
        {
            "peer": tail(row.peer_id),
            "name": short(row.name or names.get(row.peer_id, "")),
            "standing": standing(row),
            "role": short(row.role),
            "model": short(row.model),
            "version": short(row.version),
            "received": row.received,
            "used": row.used,
            "unused": row.received - row.used,
            "complaints": _complaints(row),
            "bytes": row.bytes,
            "reputation": row.reputation,
            "worth": in_own_groups(senders[row.peer_id]) if row.peer_id in senders else "",
            "teaches": _teaches(tail(row.peer_id), figures),
        }
        for row in rows[:MAX_ROWS]
    ]


def _teaches(peer: str, figures: Mapping[str, float | None]) -> str:
    """What a peer is as a teacher of the node; empty where it is none."""
    trust, worth = (figures.get(f"distill/{name}/{peer}") for name in ("trust", "worth"))
    if trust is None:
        return ""
    return ("not trusted" if trust == 0 else f"trusted {trust:.0%}") + (
        "" if worth is None else f", worth {worth:z.1f}"
    )


def _complaints(row: PeerRow) -> str:
    """Complaints about a peer, the most frequent first; drops of a healthy swarm are none."""
    against = {reason: count for reason, count in row.dropped.items() if reason not in NO_LOSS}
    most = sorted(against.items(), key=lambda item: -item[1])[:MAX_COMPLAINTS]
    return ", ".join(f"{count:,} {short(reason)}" for reason, count in most)


def _names(nodes: Sequence[NodeReader]) -> dict[str, str]:
    """Names by peer id: of the nodes here, and self-reported ones of the others."""
    rosters = [row for node in nodes for row in (node.roster.peers if node.roster else ())]
    named = {row.peer_id: row.name for row in rosters if row.name}
    return named | {node.peer_id: node.name for node in nodes if node.peer_id is not None}


class Member(Struct):
    """A peer of the picture."""

    peer: str
    """End of its peer id."""
    name: str
    standing: Standing
    """`here`: a node of this machine."""
    role: str
    model: str
    version: str
    """Self-reported version of swarm."""
    round: int | None = None
    """Rounds of a node of this machine."""


class Gift(Struct, frozen=True):
    """Groups that one member received from another; indexes of members."""

    giver: int
    taker: int
    received: int
    used: int
    connected: bool


class Relay(Struct, frozen=True):
    """A snapshot on its way between two members."""

    giver: int
    taker: int
    version: int
    fraction: float | None
    """Fraction that the taker has; None for a member of another machine."""


class Sharing(Struct, frozen=True):
    """The picture."""

    members: list[Member]
    gifts: list[Gift]
    num_omitted: int
    relays: list[Relay] = []


class Given(Struct, frozen=True):
    """Fates of a node's groups at the other nodes of this machine."""

    shared: int
    received: int
    """Receipts by the others: a group counts once for each of them."""
    used: int
    takers: int
    """Nodes of this machine that received any."""


def sharing(nodes: Sequence[NodeReader]) -> Sharing:
    """The nodes first, then the peers that they know, the most useful first."""
    here = {node.peer_id: node for node in nodes if node.peer_id is not None}
    seen: dict[str, PeerRow] = {}
    for node in here.values():
        for row in node.roster.peers if node.roster else ():
            if row.peer_id not in here and (row.peer_id not in seen or _rank(row) > _rank(seen[row.peer_id])):
                seen[row.peer_id] = row
    others = sorted(seen.values(), key=_rank, reverse=True)
    shown = others[: max(0, MAX_MEMBERS - len(here))]
    members = [_of_node(peer_id, node) for peer_id, node in here.items()] + [_of_row(row) for row in shown]
    indexes = {peer_id: index for index, peer_id in enumerate([*here, *(row.peer_id for row in shown)])}
    gifts = [
        Gift(indexes[row.peer_id], indexes[peer_id], row.received, row.used, row.connected)
        for peer_id, node in here.items()
        for row in (node.roster.peers if node.roster else ())
        if row.peer_id in indexes and (row.received or row.connected)
    ]
    return Sharing(members, gifts, len(others) - len(shown), _relays(here, members, indexes))


def _relays(here: Mapping[str, NodeReader], members: list[Member], indexes: dict[str, int]) -> list[Relay]:
    """Transfers of a learner's newest snapshot now; adds members that only one end knows."""
    links: dict[tuple[str, str], tuple[int, float | None]] = {}
    for peer_id, node in here.items():
        if (now := node.snapshot) is not None and node.history.phase == "running":
            links |= {(peer_id, taker): (now.version, None) for taker in now.feeds if (peer_id, taker) not in links}
            if now.source is not None and now.fraction < 1:
                links[now.source, peer_id] = (now.version, now.fraction)
    for peer_id in dict.fromkeys(end for link in links for end in link):
        if peer_id not in indexes and len(members) < MAX_MEMBERS:
            indexes[peer_id] = len(members)
            members.append(Member(tail(peer_id), "", "connected", "", "", ""))
    return [
        Relay(indexes[giver], indexes[taker], version, fraction)
        for (giver, taker), (version, fraction) in links.items()
        if giver in indexes and taker in indexes
    ]


def given(node: NodeReader, nodes: Sequence[NodeReader]) -> Given:
    """Fates of a node's groups, by the accounts of the other nodes of this machine."""
    rows = [
        row
        for other in nodes
        if other is not node and other.roster
        for row in other.roster.peers
        if row.peer_id == node.peer_id and row.received
    ]
    return Given(
        shared=node.history.groups["shared"],
        received=sum(row.received for row in rows),
        used=sum(row.used for row in rows),
        takers=len(rows),
    )


def _of_node(peer_id: str, node: NodeReader) -> Member:
    version = node.history.start.versions.get("swarm", "") if node.history.start else ""
    rounds = node.history.latest.round if node.history.latest else 0
    return Member(tail(peer_id), node.name, "here", node.history.role, node.model, short(version), rounds)


def _of_row(row: PeerRow) -> Member:
    return Member(tail(row.peer_id), short(row.name), standing(row), short(row.role), short(row.model),
                  short(row.version))  # fmt: skip


def standing(row: PeerRow) -> Standing:
    """Standing of a peer with the node of this row."""
    if row.quarantined_until is not None:
        return "isolated"
    return "connected" if row.connected else "away"


def _rank(row: PeerRow) -> tuple[bool, tuple[float, ...]]:
    return row.connected, row.usefulness


class ShownCompletion(Struct, frozen=True):
    """One completion."""

    text: str
    reward: float | None
    claimed: float | None
    """Its sender's reward."""
    ended: str
    """Why it ended."""
    parts: dict[str, float]
    why: str
    """The answer found in it, and the expected one."""
    count: int
    """Times that it was given."""
    pictures: list[str]
    """Shown to the policy between its turns, as data addresses."""


class ShownSample(Struct, frozen=True):
    """One group and its fate."""

    time: float
    round: int
    outcome: str
    why: str
    """The reason's sentence; empty for a group trained on."""
    task: str
    question: str
    expected: str
    """The right answer; empty where there is no single one."""
    pictures: list[str]
    """Images of the question, likewise."""
    sender: str
    own: bool
    policy: str
    version: int
    completions: list[ShownCompletion]
    num_completions: int


def samples(node: NodeReader, nodes: Sequence[NodeReader], most: int = MAX_SAMPLES) -> Json:
    """Its latest groups with their fates, at most `most`, and answers before training and now."""
    return {"groups": latest(node.folder, _names(nodes), most), "answers": _answers(node.history)}


def _answers(history: PeerHistory) -> list[Json]:
    """The same held-out questions answered before the first round and now, those first whose answers changed."""
    first, last = history.evaluation_before(), history.evaluation_after()
    if first is None or last is None:
        return []
    # The same words about another picture are another question.
    now = {(sample.question, sample.pictures): sample for sample in last.samples}
    both = [(old, now[key]) for old in first.samples if (key := (old.question, old.pictures)) in now]
    both.sort(key=lambda pair: (pair[0].correct == pair[1].correct, pair[0].completion == pair[1].completion))
    return [
        {
            "question": clean_lines(old.question[:MAX_TEXT_CHARS]),
            "expected": clean(old.expected, MAX_ANSWER_CHARS),
            "pictures": _pictures(old.pictures),
            "before": _answer(old),
            "now": _answer(new),
        }
        for old, new in both[:MAX_ANSWERS]
    ]


def _answer(sample: Sample) -> Json:
    found = "" if sample.correct else clean(why(0.0, "", sample.found), 2 * MAX_ANSWER_CHARS)
    return {"text": clean_lines(sample.completion[:MAX_TEXT_CHARS]), "correct": sample.correct, "why": found}


def latest(folder: Path, names: Mapping[str, str], most: int = MAX_SAMPLES) -> list[ShownSample]:
    """The latest first; `names` has the peers' names by peer id."""
    chosen: list[ShownSample] = []
    counts: dict[tuple[str, bool], int] = {}
    for record in reversed(read(folder, READ_BYTES)):
        kind = record.outcome, record.own
        if counts.get(kind, 0) < MAX_PER_OUTCOME and len(chosen) < most:
            counts[kind] = counts.get(kind, 0) + 1
            chosen.append(_shown(record, names))
    return chosen


def _shown(record: SampleRecord, names: Mapping[str, str]) -> ShownSample:
    name = short(names.get(record.sender, ""))
    return ShownSample(
        time=record.time,
        round=record.round,
        outcome=record.outcome,
        why=sentence(record.reason) if record.reason else "",
        task=short(record.task),
        question=clean_lines((record.question or "")[:MAX_TEXT_CHARS]),
        expected=clean(record.expected, MAX_ANSWER_CHARS),
        pictures=_pictures(record.pictures),
        sender=f"{name} ({tail(record.sender)})" if name else tail(record.sender),
        own=record.own,
        policy=short(record.policy),
        version=record.version,
        completions=[
            _completion(each, count, record.expected) for each, count in folded(record.completions)[:MAX_COMPLETIONS]
        ],
        num_completions=record.num_completions,
    )


def _completion(completion: SampledCompletion, count: int, expected: str) -> ShownCompletion:
    named = completion.names_speakers
    text = "\n".join(f"{turn.role}: {turn.text}" if named else turn.text for turn in completion.turns)
    length = sum(turn.num_chars for turn in completion.turns)
    cut = clean_lines(text[:MAX_TEXT_CHARS])
    return ShownCompletion(
        text=cut if length <= MAX_TEXT_CHARS else f"{cut} ... ({length:,} characters)",
        reward=completion.reward,
        claimed=completion.claimed,
        ended=short(completion.finish_reason),
        parts={short(name): value for name, value in completion.parts.items()},
        why=clean(why(completion.reward, expected, completion.found), 2 * MAX_ANSWER_CHARS),
        count=count,
        pictures=_pictures(png for turn in completion.turns for png in turn.pictures),
    )


def _pictures(pngs: Iterable[bytes]) -> list[str]:
    """The first of those that are pictures."""
    return [url for png in pngs if (url := as_url(png))][:MAX_PICTURES]
