from __future__ import annotations

import pytest

from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.roster import build_roster, decode_roster, encode_roster
from swarm.net.trust.accounts import PeerBook, SafetySettings
from swarm.types import PeerRecord


def test_the_roster_joins_what_the_network_and_the_accounts_know(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = MemoryHub()
    transport, neighbour = MemoryTransport(hub, "me"), MemoryTransport(hub, "neighbour")
    transport.start()
    neighbour.start()
    book = PeerBook(SafetySettings(quarantine_at=1.0), clock=lambda: 100.0)
    book.admit("neighbour", 1, 500)
    book.report("neighbour", "informative")
    book.report("neighbour", "used")
    book.admit("gone", 1, 10)
    book.report("gone", "verifier_timeout")
    record = PeerRecord("run", "neighbour", (), "tiny", (), "peer", "1", expires_at=160.0)
    monkeypatch.setattr(transport, "peers", lambda: (record,))
    roster = build_roster(transport, book, now=100.0)
    assert roster.self_id == "me"
    rows = {row.peer_id: row for row in roster.peers}
    assert set(rows) == {"neighbour", "gone"}
    friend, foe = rows["neighbour"], rows["gone"]
    assert (friend.connected, friend.received, friend.used, friend.bytes) == (True, 1, 1, 500)
    assert friend.reputation > 0.5 and friend.quarantined_until is None
    assert (friend.model, friend.expires_at) == ("tiny", 160.0) and (foe.model, foe.expires_at) == ("", None)
    assert not foe.connected and foe.dropped == {"verifier_timeout": 1} and foe.quarantined_until == 700.0
    assert decode_roster(encode_roster(roster)) == roster
    assert {row.peer_id: row for row in build_roster(transport, book, now=800.0).peers}[
        "gone"
    ].quarantined_until is None
