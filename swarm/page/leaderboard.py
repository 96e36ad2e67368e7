"""How far the members of a run are: measured for the nodes on this machine, claimed by all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from swarm.foreign import clean
from swarm.net.roster import PeerRow
from swarm.page.node import MAX_NAME_CHARS, NodeReader
from swarm.page.sharing import tail
from swarm.telemetry.intervals import accuracy
from swarm.types import MemberSummary

MAX_CLAIMS = 100
MAX_KINDS = 32
CLAIMS = "What others say of themselves is their own claim: nobody checks it."


class Leader(Struct, frozen=True):
    """A member and how far it is."""

    peer: str
    """End of its peer id."""
    name: str
    model: str
    claimed: bool
    """By the member itself; otherwise read from a node's files here."""
    rounds: int
    given: int
    used: int
    accuracy: tuple[float, float, float] | None = None
    """On held-out questions, with the ends of its 95% interval (Wilson)."""
    evaluated_at: int = 0
    received_here: int = 0
    """Groups that nodes of this machine received from it."""
    used_here: int = 0
    """Of these, used in an update."""


class Kind(Struct, frozen=True):
    """Members that say they run the same."""

    role: str
    model: str
    version: str
    """Of swarm."""
    weights: int | None
    """Version of a learner's or worker's weights, where they tell it."""
    members: int


def leaders(nodes: Sequence[NodeReader]) -> list[Leader]:
    """The most accurate first, by the lower end of the interval; then those with the most rounds."""
    own = [_measured(node) for node in nodes if node.history.latest is not None and not node.control]
    here = {node.peer_id for node in nodes}
    rows: dict[str, list[PeerRow]] = {}
    for row in _rows(nodes):
        if row.peer_id not in here:
            rows.setdefault(row.peer_id, []).append(row)
    claims = [_claimed(each, told) for each in rows.values() if (told := _summary(each)) is not None]
    # Claims, which cost nothing, crowd out no node that was measured.
    return sorted([*own, *sorted(claims, key=_rank)[:MAX_CLAIMS]], key=_rank)


def kinds(nodes: Sequence[NodeReader]) -> list[Kind]:
    """How many of the members known here run what, by their own word; the most frequent first."""
    latest = {row.peer_id: row for row in _rows(nodes) if row.version}
    counts = Counter(
        (row.role, row.model, row.version, row.summary.weights if row.summary else None) for row in latest.values()
    )
    return [
        Kind(
            clean(role, MAX_NAME_CHARS), clean(model, MAX_NAME_CHARS), clean(version, MAX_NAME_CHARS), weights, members
        )
        for (role, model, version, weights), members in counts.most_common(MAX_KINDS)
    ]


def _rows(nodes: Iterable[NodeReader]) -> Iterable[PeerRow]:
    return (row for node in nodes if node.roster is not None for row in node.roster.peers)


def _summary(rows: Sequence[PeerRow]) -> MemberSummary | None:
    """The one with the most rounds: the latest, if the member is honest."""
    return max((row.summary for row in rows if row.summary is not None), key=lambda told: told.rounds, default=None)


def _claimed(rows: Sequence[PeerRow], told: MemberSummary) -> Leader:
    row = rows[-1]
    return Leader(
        peer=tail(row.peer_id),
        name=clean(row.name, MAX_NAME_CHARS),
        model=clean(row.model, MAX_NAME_CHARS),
        claimed=True,
        rounds=told.rounds,
        given=told.given,
        used=told.used,
        accuracy=accuracy(told.correct, told.asked),
        evaluated_at=told.evaluated_at,
        received_here=sum(each.received for each in rows),
        used_here=sum(each.used for each in rows),
    )


def _measured(node: NodeReader) -> Leader:
    history = node.history
    groups = history.groups
    evaluation = history.evaluation_after() or history.evaluation_before()
    counts = list(evaluation.tasks.values()) if evaluation else []
    return Leader(
        peer=tail(node.peer_id or ""),
        name=node.name,
        model=node.model,
        claimed=False,
        rounds=history.latest.round if history.latest else 0,
        given=groups["shared"],
        used=groups["used_external"],
        accuracy=accuracy(sum(right for right, _ in counts), sum(asked for _, asked in counts)),
        evaluated_at=evaluation.round if evaluation else 0,
    )


def _rank(leader: Leader) -> tuple[float, int]:
    return (-leader.accuracy[1] if leader.accuracy else 0.0, -leader.rounds)
