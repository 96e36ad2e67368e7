"""Swarms of real daemons that lose messages, holders and every bootstrap."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from swarm.errors import PeerUnreachable
from swarm.net.addresses.bootstrap import read_addresses
from swarm.net.hivemind import control
from swarm.net.hivemind.directory import Directory
from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.records.envelope import MAX_CHUNK_BYTES
from swarm.net.records.large import LARGE_PROTOCOL
from swarm.net.records.repair import GIVE_PROTOCOL, HAVE_PROTOCOL
from swarm.net.records.stores import Held, record_id
from swarm.net.services import streams
from swarm.net.services.requests import MANIFEST_PROTOCOL
from swarm.net.services.streams import MAX_STREAMS_PER_PEER
from swarm.net.trust.exchange import Exchange

from .records import drained, signed, until

pytestmark = [
    pytest.mark.network,
    pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]

Start = Callable[..., HivemindTransport]


LOST_FRACTION = 0.05


def lose_gossip(node: HivemindTransport) -> None:
    """Drop a part of the records that a node reads in feeds, each whoever hands it over."""
    receive = node._member.records.receive_gossip

    def lossy(helper: str, record: bytes) -> None:
        if random.Random(node.peer_id.encode() + record).random() >= LOST_FRACTION:
            receive(helper, record)

    node._member.records.receive_gossip = lossy  # type: ignore[method-assign]


def meet(nodes: Sequence[HivemindTransport]) -> None:
    for node in nodes:
        until(lambda node=node: len(node.status().connected) == len(nodes) - 1, "a full mesh")


def collect(nodes: Sequence[HivemindTransport], count: int, timeout_s: float = 300.0) -> list[list[bytes]]:
    """What each node drains until all have `count` records, or until the time is up."""
    got: list[list[bytes]] = [[] for _ in nodes]
    deadline = time.monotonic() + timeout_s
    while min(map(len, got)) < count and time.monotonic() < deadline:
        for node, records in zip(nodes, got, strict=True):
            records.extend(drained(node))
        time.sleep(0.02)
    return got


def test_with_a_twentieth_of_gossip_lost_repair_delivers_the_rest(start: Start) -> None:
    first = start("founder", before=lose_gossip)
    nodes = [first, *(start(name, first.multiaddrs(), before=lose_gossip) for name in "bcd")]
    meet(nodes)
    of_node = [[signed(node, b"%d" % i) for i in range(250)] for node in nodes]
    sent = {record for records in of_node for record in records}
    for i, records in enumerate(zip(*of_node, strict=True)):
        for node, record in zip(nodes, records, strict=True):
            node.publish(record)
        time.sleep(0.01)
        # On a slow machine the outboxes would overflow, and what they drop nobody can repair.
        until(lambda i=i: all(node.counters().get("published", 0) > i - 32 for node in nodes), "outboxes keep up")  # type: ignore[misc]
    got = collect(nodes, 750)
    for n, records in enumerate(got):
        expected = sent - set(of_node[n])
        assert len(records) == len(set(records)), "each record once"
        assert len(expected & set(records)) >= 0.999 * len(expected)
        assert nodes[n].counters()["repaired"] >= 10
        assert nodes[n].counters()["delivered"] <= 0.98 * len(expected)
    late = start("late", first.multiaddrs())
    (records,) = collect([late], len(sent))
    assert len(records) == len(set(records)) and len(set(records) & sent) >= 0.999 * len(sent)
    assert late.counters()["backfilled"] >= 0.5 * len(sent)


def test_a_large_record_comes_from_another_when_its_holder_dies_half_way(start: Start) -> None:
    first = start("founder")
    second = start("b", first.multiaddrs())
    meet([first, second])
    large = signed(first, os.urandom(8_000_000))
    first.publish(large)
    until(lambda: large in drained(second), "the first receiver has it")
    daemon = first._daemon
    assert daemon is not None
    asked: list[str] = []

    def dying(remote: str, request: bytes) -> Iterator[bytes]:
        asked.append(remote)
        if len(asked) > 1:
            raise LookupError("lost")
        for start in range(0, len(large), MAX_CHUNK_BYTES):
            if start > 2_000_000:
                os.kill(daemon.pid, signal.SIGKILL)
            yield large[start : start + MAX_CHUNK_BYTES]

    first.serve_stream(LARGE_PROTOCOL, dying)
    third = start("c", first.multiaddrs())
    records: list[bytes] = []
    until(lambda: records.extend(drained(third)) or large in records, "the late comer has it")
    assert records == [large]
    assert asked[0] == third.peer_id and third.counters()["holders_failed"] >= 1


def test_a_holder_that_hardly_gives_is_left_for_another(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from swarm.net import bandwidth as bandwidth_module

    first = start("founder")
    second = start("b", first.multiaddrs())
    meet([first, second])
    large = signed(first, os.urandom(3_000_000))
    first.publish(large)
    until(lambda: large in drained(second), "the first receiver has it")
    assert first._daemon is not None
    first._daemon.incoming.gatekeeper.pace = lambda num_bytes: (
        3_600.0 if num_bytes > bandwidth_module.SHORT_BYTES else 0.0
    )
    monkeypatch.setattr(bandwidth_module, "PATIENCE_S", 2.0)
    third = start("c", first.multiaddrs())
    exchange = Exchange(third, third._member.identity, clock=lambda: 1_000.0)
    until(lambda: exchange.receive()[0], "the late comer has it, to the last byte")
    assert exchange.book.stats()[first.peer_id].dropped == {"slow_holder": 1}


def test_a_swarm_outlives_every_bootstrap_and_a_member_finds_back(start: Start, tmp_path: Path) -> None:
    bootstraps = [start("founder")]
    bootstraps.append(start("boot", bootstraps[0].multiaddrs()))
    addresses = [address for node in bootstraps for address in node.multiaddrs()]
    memory = tmp_path / "peers.known"
    b, c, d = (start(name, addresses, remember=memory if name == "d" else None) for name in "bcd")
    meet([*bootstraps, b, c, d])
    for bootstrap in bootstraps:
        bootstrap.close()
    for node in (b, c, d):
        until(lambda node=node: len(node.status().connected) == 2, "the bootstraps' departure is seen")

    def known() -> set[str]:
        return {address.rpartition("/")[2] for address in read_addresses(memory)} if memory.exists() else set()

    until(lambda: known() >= {b.peer_id, c.peer_id}, "whom it met is written down")
    still_here, missed = signed(b, b"still here"), signed(b, b"you missed this")
    b.publish(still_here)
    for node in (c, d):
        until(lambda node=node: still_here in drained(node), "gossip goes on")
    d.close()
    until(lambda: len(b.status().connected) == 1, "the member's departure is seen")
    b.publish(missed)
    make_identity_free(d)
    back = start("d", addresses, remember=memory)
    until(lambda: set(back.status().connected) == {b.peer_id, c.peer_id}, "it finds back without any bootstrap")
    records: list[bytes] = []
    until(lambda: records.extend(drained(back)) or missed in records, "and gets what it missed")


def make_identity_free(node: HivemindTransport) -> None:
    node._member.identity.close()


def test_a_partner_that_is_named_by_host_is_found(start: Start) -> None:
    first = start("founder")
    port = first.multiaddrs()[0].split("/")[4]
    second = start("b", [f"hosts:localhost:{port}/p2p/{first.peer_id}"])
    until(second.manifest, "the run is learned through a host name")


def test_peers_are_learned_from_members(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Directory, run_id: str, now: float, *, everything: bool) -> list[object]:
        return []

    monkeypatch.setattr(Directory, "read", nothing)
    first = start("founder")
    b = start("b", first.multiaddrs())
    c = start("c", first.multiaddrs())
    meet([first, b, c])
    everyone = {first.peer_id, c.peer_id}
    until(lambda: {record.peer_id for record in b.peers()} == everyone, "everyone is known without the directory")


def test_one_peer_cannot_take_every_stream_nor_hold_them_for_ever(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:

    for module in (control, streams):
        monkeypatch.setattr(module, "STALL_TIMEOUT_S", 12.0)
    first = start("founder")
    first.serve_stream("/test/endless", lambda remote, request: iter(lambda: bytes(MAX_CHUNK_BYTES), b""))
    first.serve("/test/short", lambda remote, request: b"short")
    second = start("b", first.multiaddrs())
    third = start("c", first.multiaddrs())
    meet([first, second, third])
    taken = [second.stream(first.peer_id, "/test/endless", b"", 30.0, 2**40) for _ in range(MAX_STREAMS_PER_PEER)]
    for chunks in taken:
        assert next(chunks)
    with pytest.raises(PeerUnreachable, match="busy"):
        second.request(first.peer_id, "/test/short", b"", 30.0)
    assert third.request(first.peer_id, "/test/short", b"", 30.0) == b"short"
    assert second.request(first.peer_id, MANIFEST_PROTOCOL, b"", 30.0) == first.sealed_manifest()

    def served_again() -> bool:
        try:
            return second.request(first.peer_id, "/test/short", b"", 5.0) == b"short"
        except PeerUnreachable:
            return False

    # It takes no byte of them: they are given up, and the peer is served again.
    until(served_again, "the stalled streams are given up")


def test_a_member_that_lies_costs_its_budget_and_is_asked_less(start: Start) -> None:
    first = start("founder")
    liar = start("b", first.multiaddrs())
    meet([first, liar])
    liar.serve(HAVE_PROTOCOL, lambda remote, request: bytes(2**21))
    liar.serve_stream(GIVE_PROTOCOL, lambda remote, request: iter(lambda: bytes(MAX_CHUNK_BYTES), b""))
    until(lambda: first.counters().get("repair_failures", 0) >= 2, "the lies are counted")
    liar.serve(HAVE_PROTOCOL, lambda remote, request: msgspec.msgpack.encode([Held(bytes(16), 10, 5.0)]))
    until(lambda: first.counters().get("repair_failures", 0) >= 3, "also about what it gives")
    assert first.drain() == [] and first.counters().get("daemon_restarts", 0) == 0
    junk = b"no envelope"
    liar.serve(HAVE_PROTOCOL, lambda remote, request: msgspec.msgpack.encode([Held(record_id(junk), len(junk), 5.0)]))
    gift = record_id(junk) + len(junk).to_bytes(4, "big") + junk
    liar.serve(GIVE_PROTOCOL, lambda remote, request: gift)
    until(lambda: first.counters().get("refused_repairs"), "what is not signed is refused")
    assert first.drain() == [] and first._member.records.store.get(record_id(junk)) is None
    true = signed(liar, b"true for once")
    liar.publish(true)
    until(lambda: true in drained(first), "its gossip is still heard")
