"""What an exchange makes of a network at its worst: nothing false, nothing twice, nobody blamed."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from swarm.net.in_memory import MemoryHub
from swarm.net.records.identity import Identity
from swarm.net.records.wire import make_run_id
from swarm.net.trust.exchange import Exchange
from swarm.types import RolloutGroup

from .faulty import Fault, FaultyTransport
from .records import make_group, opened, sealed_manifest

IDENTITIES = [Identity.generate() for _ in range(3)]
RUN_ID = make_run_id("demo", IDENTITIES[0].peer_id)
NOW = 1_000.0


class Node:
    """A peer that shares and takes in groups, and that can crash."""

    def __init__(self, hub: MemoryHub, identity: Identity, faults: set[Fault], seed: int) -> None:
        self._hub, self.identity, self._faults, self._seed = hub, identity, faults, seed
        self.received: list[RolloutGroup] = []
        self.refused: Counter[str] = Counter()
        self.lost: set[tuple[str, int]] = set()
        self.shared = 0
        self.start()

    def start(self) -> None:
        manifest = sealed_manifest(self.identity) if self.identity is IDENTITIES[0] else None
        self.transport = FaultyTransport(self._hub, self.identity.peer_id, manifest, self._faults, self._seed)
        self.transport.start()
        self.exchange = Exchange(self.transport, self.identity, clock=lambda: NOW)

    def share(self) -> None:
        assert self.exchange.share(make_group(sequence=self.shared)) is not None
        self.shared += 1

    def receive(self) -> None:
        groups, refused = self.exchange.receive()
        self.received += [each.group for each in groups]
        self.refused.update(refused)
        for record in self.transport.lost:
            group = opened(record, RUN_ID, now=NOW).group
            self.lost.add((group.peer_id, group.sequence))
        self.transport.lost.clear()

    def crash(self) -> None:
        """Be gone without a word, and come back with what a checkpoint holds."""
        seen = self.exchange.book.highest_sequences()
        self.transport.close()
        self.start()
        self.exchange.book.restore(seen)


def run_swarm(faults: set[Fault], seed: int, crashing: bool) -> list[Node]:
    hub = MemoryHub()
    nodes = [Node(hub, identity, faults, seed + i) for i, identity in enumerate(IDENTITIES)]
    for step in range(12):
        for node in nodes:
            node.share()
        for node in nodes[: 1 + step % 3]:
            node.receive()
        if crashing and step == 6:
            nodes[1].crash()
    for node in nodes:
        for _ in range(100):
            node.receive()
    return nodes


@pytest.mark.parametrize(
    "faults", [{fault} for fault in Fault] + [set(Fault)], ids=lambda faults: "+".join(sorted(map(str, faults)))
)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=15)
def test_whatever_befalls_records_on_their_way(faults: set[Fault], seed: int) -> None:
    nodes = run_swarm(faults, seed, crashing=False)
    for node in nodes:
        got = Counter((group.peer_id, group.sequence) for group in node.received)
        sent = {(other.identity.peer_id, i) for other in nodes if other is not node for i in range(other.shared)}
        assert set(got.values()) <= {1}, "nothing twice"
        assert set(got) == sent - node.lost, "everything that came, and nothing else"
        for group in node.received:
            assert group == make_group(RUN_ID, group.peer_id, group.sequence), "as it was shared"
        garbled = {"malformed", "unknown_kind", "bad_signature", "schema_version", "wrong_run"}
        assert set(node.refused) <= garbled | {"duplicate"}
        accounts = node.exchange.book.stats()
        assert all(account.offence == 0 for account in accounts.values()), "nobody is blamed for the network"
        assert set(accounts) <= {identity.peer_id for identity in IDENTITIES}


@given(seed=st.integers(0, 2**32))
@settings(max_examples=15)
def test_a_peer_that_crashes_gets_what_it_missed_and_nothing_twice(seed: int) -> None:
    nodes = run_swarm({Fault.DELAY, Fault.DUPLICATE, Fault.REORDER}, seed, crashing=True)
    for node in nodes:
        got = Counter((group.peer_id, group.sequence) for group in node.received)
        assert set(got.values()) <= {1}
    crashed, others = nodes[1], (nodes[0], nodes[2])
    after = {(node.identity.peer_id, i) for node in others for i in range(7, node.shared)}
    assert after <= {(group.peer_id, group.sequence) for group in crashed.received}
    for node in others:
        assert sum(group.peer_id == crashed.identity.peer_id for group in node.received) == crashed.shared
