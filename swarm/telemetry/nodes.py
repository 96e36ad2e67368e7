"""The nodes on this machine, read from their directories in bounded memory, and the progress of their runs' members."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from swarm.errors import ConfigError
from swarm.net.roster import ROSTER_FILE, PeerRow, Progress, Roster, read_progress, read_roster
from swarm.sanitize import clean
from swarm.telemetry.alerts import Alert, alerts, free_bytes
from swarm.telemetry.curves import Curve
from swarm.telemetry.history import KEPT_ROUNDS, PeerHistory
from swarm.telemetry.intervals import accuracy
from swarm.telemetry.records import METRICS_FILE
from swarm.types import MemberSummary

FIND_EVERY_S = 5.0
MAX_NAME_CHARS = 40
TAIL_CHARS = 8
"""Shown of a peer id: all of them start alike."""
MAX_CLAIMS = 100
MAX_KINDS = 32
CLAIMS = "What others say of themselves is their own claim: nobody checks it."
CREDIT = (
    "Credit is what one group of a member is worth to other members, measured in their own groups; in brackets, how "
    "many independent members measured it. Training does not use it."
)


class Found(NamedTuple):
    """A node's directory."""

    folder: Path
    name: str
    control: bool = False


class Arrivals:
    """The nodes that `find` finds, each once."""

    def __init__(self, find: Callable[[], Sequence[Found]], clock: Callable[[], float] = time.monotonic) -> None:
        """`find` is called at most every `FIND_EVERY_S` seconds of `clock`."""
        self._find = find
        self._clock = clock
        self._found_at = -math.inf
        self._known: set[Path] = set()

    def new(self) -> list[Found]:
        """Nodes found for the first time, in the order of `find`."""
        now = self._clock()
        if now - self._found_at < FIND_EVERY_S:
            return []
        self._found_at = now
        found = [each for each in self._find() if each.folder not in self._known]
        self._known.update(each.folder for each in found)
        return found


class NodeReader:
    """A node's directory, up to the last `read`."""

    def __init__(
        self, folder: Path, name: str | None = None, control: bool = False, history: PeerHistory | None = None
    ) -> None:
        """`history` defaults to one in bounded memory, called `name`; `control`: see `PeerHistory`."""
        self.folder = folder
        self.history = history or PeerHistory(folder / METRICS_FILE, name, KEPT_ROUNDS, control=control)
        self.roster: Roster | None = None
        self.free_bytes: int | None = None
        """On the directory's disk."""
        self.snapshot: Progress | None = None
        """Progress of its newest snapshot, if it downloads or serves one."""
        self._roster_at: float | None = None

    @property
    def name(self) -> str:
        """For people; users choose it freely."""
        return clean(self.history.name, MAX_NAME_CHARS)

    @property
    def control(self) -> bool:
        """Whether the node learns alone for others to be compared with."""
        return self.history.control

    @property
    def curves(self) -> dict[str, Curve]:
        """Its figures by round, by name."""
        return self.history.figures.curves

    @property
    def peer_id(self) -> str | None:
        """None before the start event."""
        return self.history.start.peer_id if self.history.start else None

    @property
    def model(self) -> str:
        """`policy.model`; empty before the start event."""
        policy = self.history.start.config.get("policy") if self.history.start else None
        return clean(str(policy.get("model", "")), MAX_NAME_CHARS) if isinstance(policy, dict) else ""

    def alerts(self, now: float) -> list[Alert]:
        """Everything wrong with the node, errors first; `now` in Unix seconds."""
        return alerts(self.history, now, self.free_bytes)

    def read(self) -> bool:
        """Read new data; returns whether there was any."""
        changed = sum(1 for _ in self.history.news()) > 0
        changed |= self._read_roster()
        before, self.snapshot = self.snapshot, read_progress(self.folder)
        self.free_bytes = free_bytes(self.folder)
        return changed or self.snapshot != before

    def _read_roster(self) -> bool:
        try:
            changed_at = (self.folder / ROSTER_FILE).stat().st_mtime
        except OSError:
            return False  # a node without one, or about to write its first
        if changed_at == self._roster_at:
            return False
        # An unreadable file is not read again before it changes: it may be large.
        self._roster_at = changed_at
        try:
            self.roster = read_roster(self.folder)
        except ConfigError:
            return False
        return True


class Leader(Struct, frozen=True):
    """A member and its progress."""

    peer: str
    """End of its peer id."""
    name: str
    model: str
    claimed: bool
    """Self-reported; otherwise read from a node's files here."""
    rounds: int
    given: int
    used: int
    accuracy: tuple[float, float, float] | None = None
    """On held-out questions, with the ends of its 95% interval (Wilson)."""
    evaluated_at: int = 0
    received_here: int = 0
    """Its groups that nodes of this machine received."""
    used_here: int = 0
    """Those that an update used."""


class Credited(Struct, frozen=True):
    """A member and what one of its groups is worth to the others, as these measured it."""

    peer: str
    name: str
    role: str
    model: str
    worth: float
    """In own groups of theirs."""
    members: int
    """So many unlike ones measured it."""


class Kind(Struct, frozen=True):
    """Members that say they run the same."""

    role: str
    model: str
    version: str
    """Version of swarm."""
    weights: int | None
    """Version of a learner's or worker's weights, where it is known."""
    members: int


def leaders(nodes: Sequence[NodeReader], public: bool = False) -> list[Leader]:
    """The most accurate first, by the lower end of the interval; then those with the most rounds.

    `public`: the nodes here by the names that other members see, not by folders and paths.
    """
    own = [_measured(node, public) for node in nodes if node.history.latest is not None and not node.control]
    here = {node.peer_id for node in nodes}
    rows: dict[str, list[PeerRow]] = {}
    for row in _rows(nodes):
        if row.peer_id not in here:
            rows.setdefault(row.peer_id, []).append(row)
    claims = [_claimed(each, summary) for each in rows.values() if (summary := _summary(each)) is not None]
    # Claims, which cost nothing, crowd out no node that was measured.
    return sorted([*own, *sorted(claims, key=_rank)[:MAX_CLAIMS]], key=_rank)


def credited(nodes: Sequence[NodeReader]) -> list[Credited]:
    """The members whose groups are worth most first; of several nodes' views the one that rests on most members."""
    known: dict[str, tuple[int, Credited]] = {}
    for row in _rows(nodes):
        if row.credit is not None and row.credit.members > known.get(row.peer_id, (0, None))[0]:
            names = tail(row.peer_id), short(row.name), short(row.role), short(row.model)
            known[row.peer_id] = row.credit.members, Credited(*names, row.credit.value, row.credit.members)
    return sorted((each for _, each in known.values()), key=lambda each: -each.worth)[:MAX_CLAIMS]


def kinds(nodes: Sequence[NodeReader]) -> list[Kind]:
    """Self-reported roles, models and versions of the known members, the most frequent first."""
    latest = {row.peer_id: row for row in _rows(nodes) if row.version}
    counts = Counter(
        (row.role, row.model, row.version, row.summary.weights if row.summary else None) for row in latest.values()
    )
    return [
        Kind(short(role), short(model), short(version), weights, members)
        for (role, model, version, weights), members in counts.most_common(MAX_KINDS)
    ]


def tail(peer_id: str) -> str:
    """The end of a peer id, which tells peers apart."""
    return short(peer_id[-TAIL_CHARS:])


def short(text: str) -> str:
    """An untrusted peer's text, printable and cut to the length of a name."""
    return clean(text, MAX_NAME_CHARS)


def _rows(nodes: Iterable[NodeReader]) -> Iterable[PeerRow]:
    return (row for node in nodes if node.roster is not None for row in node.roster.peers)


def _summary(rows: Sequence[PeerRow]) -> MemberSummary | None:
    """The one with the most rounds, which is the latest of an honest member."""
    summaries = (row.summary for row in rows if row.summary is not None)
    return max(summaries, key=lambda summary: summary.rounds, default=None)


def _claimed(rows: Sequence[PeerRow], summary: MemberSummary) -> Leader:
    row = rows[-1]
    return Leader(
        peer=tail(row.peer_id),
        name=short(row.name),
        model=short(row.model),
        claimed=True,
        rounds=summary.rounds,
        given=summary.given,
        used=summary.used,
        accuracy=accuracy(summary.correct, summary.asked),
        evaluated_at=summary.evaluated_at,
        received_here=sum(each.received for each in rows),
        used_here=sum(each.used for each in rows),
    )


def _measured(node: NodeReader, public: bool) -> Leader:
    history = node.history
    start = history.start
    groups = history.groups
    evaluation = history.evaluation_after() or history.evaluation_before()
    counts = list(evaluation.tasks.values()) if evaluation else []
    return Leader(
        peer=tail(node.peer_id or ""),
        name=short(str((start and start.config.get("name")) or "")) if public else node.name,
        model=short(start.model if start else "") if public else node.model,
        claimed=False,
        rounds=history.latest.round if history.latest else 0,
        given=groups["shared"],
        used=groups["used_external"],
        accuracy=accuracy(sum(right for right, _ in counts), sum(asked for _, asked in counts)),
        evaluated_at=evaluation.round if evaluation else 0,
    )


def _rank(leader: Leader) -> tuple[float, int]:
    return (-leader.accuracy[1] if leader.accuracy else 0.0, -leader.rounds)
