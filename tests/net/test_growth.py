"""Nodes of this version and of a later one in one swarm: both learn from each other, and nobody is blamed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.membership.transport import MemberTransport
from swarm.net.records.identity import Identity
from swarm.types import ProceduralRef

from .newer import HINT, NewerGroup, NewerMemoryTransport, Peer, RiddleRef, make_peer
from .records import IDENTITIES, sealed_manifest, until

ROUNDS = 40


def test_an_older_and_newer_nodes_learn_from_each_other() -> None:
    hub = MemoryHub()
    identities = [Identity.generate() for _ in range(3)]
    manifest = sealed_manifest(identities[0])
    peers: list[Peer] = []
    for seed, identity in enumerate(identities):
        kind = NewerMemoryTransport if seed else MemoryTransport
        transport = kind(hub, identity.peer_id, manifest)
        transport.start()
        peers.append(make_peer(transport, identity, newer=seed > 0, seed=seed))
    old, new, other_new = peers
    for _ in range(ROUNDS):
        for peer in peers:
            peer.node.run_round()
    for peer in (new, other_new):
        own = peer.node.peer_id
        other = (other_new if peer is new else new).node.peer_id
        assert peer.learned() == {old.node.peer_id: {ProceduralRef}, other: {ProceduralRef, RiddleRef}}
        sent = [group for group in peer.groups() if isinstance(group, NewerGroup)]
        assert {group.hint for group in sent if group.peer_id == other} == {HINT}, "the field arrives"
        assert {group.hint for group in sent if group.peer_id == old.node.peer_id} == {""}, "or its default is taken"
        assert old.learned()[own] == {ProceduralRef}
        account = old.exchange.book.stats()[own]
        # Fewer than are shared: an offer does not tell the kind, and those that fail make others less likely.
        assert account.dropped["unknown_question"] >= ROUNDS // 4
        assert account.offence == 0 and account.num_quarantines == 0
    assert not any(isinstance(group, NewerGroup) for group in old.groups())
    refused = old.node.ledger.snapshot()["dropped"]
    assert refused["unknown_question"] == sum(
        old.exchange.book.stats()[peer.node.peer_id].dropped["unknown_question"] for peer in (new, other_new)
    )
    assert "malformed" not in refused and old.exchange.established() >= {new.node.peer_id, other_new.node.peer_id}


@contextmanager
def newer_node(folder: Path, name: str, seed: int, bootstrap: str) -> Iterator[list[dict]]:
    """A process of `newer_process.py`; what it has said so far, the latest last."""
    command = [sys.executable, str(Path(__file__).with_name("newer_process.py")), str(folder), name, str(seed)]
    process = subprocess.Popen(
        [*command, "hivemind", bootstrap], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    said: list[dict] = []

    def read() -> None:
        assert process.stdout is not None
        said.extend(map(json.loads, process.stdout))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield said
    finally:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0
        reader.join()


@pytest.mark.network
@pytest.mark.slow
def test_they_do_over_a_real_network(start: Callable[..., MemberTransport], tmp_path: Path) -> None:
    transport = start("founder")
    old = make_peer(transport, IDENTITIES[transport.peer_id], newer=False, seed=0)
    address = transport.multiaddrs()[0]
    with newer_node(tmp_path, "new", 1, address) as first, newer_node(tmp_path, "other", 2, address) as second:

        def both_learn() -> bool:
            old.node.run_round()
            if not first or not second:
                return False
            names = {first[-1]["peer_id"], second[-1]["peer_id"]}
            expected = {transport.peer_id: {"ProceduralRef"}}
            for said in (first[-1], second[-1]):
                (other,) = names - {said["peer_id"]}
                learned = {author: set(kinds) for author, kinds in said["learned"].items()}
                if learned != expected | {other: {"ProceduralRef", "RiddleRef"}} or HINT not in said["hints"]:
                    return False
            return set(old.learned()) == names

        until(both_learn, "all learn from each other", 120.0)
    assert set().union(*old.learned().values()) == {ProceduralRef}
    accounts = {peer_id: stats for peer_id, stats in old.exchange.book.stats().items() if stats.used}
    assert len(accounts) == 2
    for account in accounts.values():
        assert account.dropped["unknown_question"] > 0 and account.offence == 0
    counters = transport.counters()
    assert counters.get("bad_gift", 0) == 0, "nor is who hands on what is unknown here"
