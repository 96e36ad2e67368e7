"""One table of all peers in the run: what the network knows of them, and their accounts."""

from __future__ import annotations

from swarm.net.trust.accounts import PeerBook, PeerStats
from swarm.net.trust.roster import PeerRow, Roster
from swarm.protocols import Transport
from swarm.types import PeerRecord


def take_census(transport: Transport, book: PeerBook, now: float) -> Roster:
    """All peers that are connected, or known from their own record or from a group."""
    status = transport.status()
    records = {record.peer_id: record for record in transport.peers()}
    accounts = book.stats()
    connected = frozenset(status.connected)
    ids = sorted(records.keys() | accounts.keys() | connected)
    rows = (_row(peer_id, records.get(peer_id), accounts.get(peer_id), peer_id in connected, now) for peer_id in ids)
    return Roster(time=now, run_id=status.run_id, self_id=transport.peer_id, peers=tuple(rows))


def _row(peer_id: str, record: PeerRecord | None, stats: PeerStats | None, connected: bool, now: float) -> PeerRow:
    stats = stats or PeerStats()
    quarantined = stats.quarantined_until is not None and stats.quarantined_until > now
    return PeerRow(
        peer_id=peer_id,
        model=record.model if record else "",
        tasks=record.tasks if record else (),
        role=record.role if record else "",
        version=record.version if record else "",
        connected=connected,
        received=stats.received,
        used=stats.used,
        dropped=dict(stats.dropped),
        bytes=stats.num_bytes,
        last_seen=now if connected else stats.last_seen,
        reputation=stats.reputation,
        quarantined_until=stats.quarantined_until if quarantined else None,
    )
