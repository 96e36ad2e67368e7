"""Who gives what to whom: the accounts that the nodes of this machine keep of the others, laid side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from swarm.foreign import clean
from swarm.net.roster import PeerRow
from swarm.page.node import MAX_NAME_CHARS, NodeReader

MAX_MEMBERS = 256
"""Drawn at most, the most useful; all others are only counted."""
TAIL_CHARS = 8
"""Of a peer id: all start alike."""
Standing = Literal["here", "connected", "away", "isolated"]


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
    """Of swarm, as it says itself."""
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
    """Of it that the taker has; None for a member of another machine."""


class Sharing(Struct, frozen=True):
    """The picture."""

    members: list[Member]
    gifts: list[Gift]
    num_omitted: int
    relays: list[Relay] = []


class Given(Struct, frozen=True):
    """What the other nodes of this machine did with a node's groups."""

    shared: int
    received: int
    """Of these, received by the others, each counted once for each."""
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
    places = {peer_id: place for place, peer_id in enumerate([*here, *(row.peer_id for row in shown)])}
    gifts = [
        Gift(places[row.peer_id], places[peer_id], row.received, row.used, row.connected)
        for peer_id, node in here.items()
        for row in (node.roster.peers if node.roster else ())
        if row.peer_id in places and (row.received or row.connected)
    ]
    return Sharing(members, gifts, len(others) - len(shown), _relays(here, members, places))


def _relays(here: Mapping[str, NodeReader], members: list[Member], places: dict[str, int]) -> list[Relay]:
    """Who passes a learner's newest snapshot on to whom now; adds members that only one end knows of."""
    links: dict[tuple[str, str], tuple[int, float | None]] = {}
    for peer_id, node in here.items():
        if (now := node.snapshot) is not None and node.history.phase == "running":
            links |= {(peer_id, taker): (now.version, None) for taker in now.feeds if (peer_id, taker) not in links}
            if now.source is not None and now.fraction < 1:
                links[now.source, peer_id] = (now.version, now.fraction)
    for peer_id in dict.fromkeys(end for link in links for end in link):
        if peer_id not in places and len(members) < MAX_MEMBERS:
            places[peer_id] = len(members)
            members.append(Member(tail(peer_id), "", "connected", "", "", ""))
    return [
        Relay(places[giver], places[taker], version, fraction)
        for (giver, taker), (version, fraction) in links.items()
        if giver in places and taker in places
    ]


def given(node: NodeReader, nodes: Sequence[NodeReader]) -> Given:
    """What became of a node's groups, as far as the other nodes of this machine tell."""
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
    return Member(tail(peer_id), node.name, "here", node.history.role, node.model, _short(version), rounds)


def _of_row(row: PeerRow) -> Member:
    return Member(tail(row.peer_id), _short(row.name), standing(row), _short(row.role), _short(row.model),
                  _short(row.version))  # fmt: skip


def standing(row: PeerRow) -> Standing:
    """How a peer stands with the node whose row this is."""
    if row.quarantined_until is not None:
        return "isolated"
    return "connected" if row.connected else "away"


def tail(peer_id: str) -> str:
    """The end of a peer id, which tells peers apart."""
    return _short(peer_id[-TAIL_CHARS:])


def _short(text: str) -> str:
    return clean(text, MAX_NAME_CHARS)


def _rank(row: PeerRow) -> tuple[bool, tuple[float, ...]]:
    return row.connected, row.usefulness
