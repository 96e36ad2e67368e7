"""What a peer says of itself stays small here, whoever sends it on and however often."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from swarm.errors import Refusal
from swarm.net.config import NetworkSettings
from swarm.net.hivemind.dht_entries import PARTS, EntryChecker, part_of
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.membership.member import Member, Profile
from swarm.net.records import wire
from swarm.net.records.identity import Identity
from swarm.net.records.large import LARGE_PROTOCOL, LargeRequest
from swarm.net.records.stores import record_id
from swarm.net.records.wire import MAX_PEER_CONTENT_BYTES, make_run_id, open_peer_record, seal_peer_record
from swarm.net.roster import MAX_ROW_CHARS, build_roster, read_roster, write_roster
from swarm.net.trust.accounts import PeerBook, SafetySettings
from swarm.reasons import Reason
from swarm.telemetry.nodes import NodeReader
from swarm.types import MAX_TOLD_TASKS, PeerRecord

from .records import sealed_manifest

OWN, MALLORY = Identity.generate(), Identity.generate()
RUN = make_run_id("demo", OWN.peer_id)
NOW = 1_000.0
SHORT = tuple(f"{number % 256:02x}" for number in range(4_020))
"""Names that 818 bytes hold."""
HELD = bytes(5_000)
times = itertools.count()


def fresh(identity: Identity = MALLORY, tasks: tuple[str, ...] = SHORT[:MAX_TOLD_TASKS], run_id: str = RUN) -> bytes:
    """A record that nobody has seen."""
    expires_at = NOW + 100.0 + next(times) / 100
    return seal_peer_record(identity, PeerRecord(run_id, identity.peer_id, (), "", tasks, "peer", "1", expires_at))


def make_member(profile: Profile | None = None, network: NetworkSettings | None = None) -> Member:
    return Member(network or NetworkSettings(), OWN, profile or Profile(), sealed_manifest(OWN), lambda: NOW)


HOME = (
    "/ip4/192.168.1.5/tcp/1",
    "/ip4/10.8.0.2/tcp/1",
    "/ip4/172.17.0.1/tcp/1",
    "/ip4/100.64.0.9/tcp/1",
    "/ip4/169.254.7.7/tcp/1",
    "/ip6/fd00::5/tcp/1",
    "/ip6/fe80::5/tcp/1",
)
LOOP, PUBLIC, NAME = "/ip4/127.0.0.1/tcp/1", "/ip4/8.8.8.8/tcp/1", "/dns4/peer.example/tcp/1"
BEHIND = f"/ip4/8.8.4.4/tcp/1/p2p/{MALLORY.peer_id}/p2p-circuit"


def published(member: Member, *addresses: str) -> set[str]:
    """The addresses that others learn of."""
    member.own.locate(addresses)
    record = open_peer_record(member.own.sealed()[0], RUN, now=NOW)
    return {address.removesuffix(f"/p2p/{OWN.peer_id}") for address in record.multiaddrs}


def test_a_member_of_a_public_run_publishes_no_address_of_its_own_network() -> None:
    announced = make_member(network=NetworkSettings(announce=(PUBLIC,)))
    assert published(announced, PUBLIC, NAME, BEHIND, LOOP, *HOME) == {PUBLIC, NAME, BEHIND}
    invited = make_member(network=NetworkSettings(bootstrap=(f"/ip4/8.8.4.4/tcp/1/p2p/{MALLORY.peer_id}",)))
    assert published(invited, LOOP, *HOME) == set(), "others reach it through gossip"
    listening = make_member()
    assert published(listening, PUBLIC, LOOP, *HOME) == {PUBLIC}


def test_a_member_that_has_lost_everybody_takes_its_run_for_no_other() -> None:
    member = make_member(network=NetworkSettings(bootstrap=(f"/dns4/boot.example/tcp/1/p2p/{MALLORY.peer_id}",)))
    assert published(member, LOOP, *HOME) == set(HOME), "a name may be of this network"
    member.peers.observed = {MALLORY.peer_id: (PUBLIC,)}
    assert published(member, LOOP, *HOME) == set()
    member.peers.observed = {}
    assert published(member, LOOP, *HOME) == set() and not member.own.in_private_run()
    member.peers.observed = {MALLORY.peer_id: ("/ip4/192.168.1.7/tcp/1",)}
    assert published(member, LOOP, *HOME) == set(HOME)


def test_a_member_of_a_run_at_home_publishes_where_its_neighbours_find_it() -> None:
    at_home = make_member(network=NetworkSettings(bootstrap=(f"/ip4/192.168.1.9/tcp/1/p2p/{MALLORY.peer_id}",)))
    assert published(at_home, LOOP, *HOME) == set(HOME)
    assert published(at_home, LOOP, *HOME[:1], PUBLIC) == {HOME[0], PUBLIC}, "its router has a public address"
    assert published(make_member(), LOOP) == {LOOP}, "all others are on this machine"


def test_a_peer_tells_as_many_tasks_as_a_manifest_may_have() -> None:
    assert len(open_peer_record(fresh(), RUN, now=NOW).tasks) == MAX_TOLD_TASKS == wire.MAX_MANIFEST_TASKS
    with pytest.raises(Refusal) as refusal:
        open_peer_record(fresh(tasks=SHORT[: MAX_TOLD_TASKS + 1]), RUN, now=NOW)
    assert refusal.value.reason == "limits"


@pytest.mark.parametrize("num_tasks", [MAX_TOLD_TASKS, len(SHORT)])
def test_many_records_take_little_more_memory_than_their_bytes(num_tasks: int) -> None:
    records = [fresh(tasks=SHORT[:num_tasks]) for _ in range(300)]
    tracemalloc.start()
    try:
        for record in records:
            try:
                open_peer_record(record, RUN, now=NOW)
            except Refusal as refusal:
                assert refusal.reason == "limits"
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 300 * 1_024 and peak < held + 100_000


def test_a_node_tells_only_what_others_take() -> None:
    many = make_member(Profile(tasks=SHORT)).own.sealed()[0]
    assert open_peer_record(many, RUN, now=NOW).tasks == SHORT[:MAX_TOLD_TASKS]
    alike = tuple(f"{'x' * 61}{name}" for name in SHORT[:MAX_TOLD_TASKS])
    assert sum(map(len, alike)) > MAX_PEER_CONTENT_BYTES
    assert open_peer_record(make_member(Profile(tasks=alike)).own.sealed()[0], RUN, now=NOW).tasks == ()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The payloads that were decompressed."""
    seen: list[bytes] = []
    decompress = wire.decompress
    monkeypatch.setattr(
        wire, "decompress", lambda signed, size: (seen.append(signed.record), decompress(signed, size))[1]
    )
    return seen


def test_the_directory_decodes_no_entry_that_is_out_of_place(opened: list[bytes]) -> None:
    keys = {bytes([part]): part for part in range(PARTS)}
    checker, other = EntryChecker(RUN, keys, lambda: NOW), Identity.generate()
    sealed, part = fresh(), part_of(MALLORY.peer_id)
    expires_at = open_peer_record(sealed, RUN, now=NOW).expires_at
    opened.clear()

    def put(part: int, owner: str, record: bytes = sealed) -> None:
        checker.open(bytes([part]), msgspec.msgpack.encode(owner), msgspec.msgpack.encode(record), expires_at)

    elsewhere = fresh(run_id="other-run")
    for place in (
        ((part + 1) % PARTS, MALLORY.peer_id),
        (part_of(other.peer_id), other.peer_id),
        (part, MALLORY.peer_id, elsewhere),
    ):
        with pytest.raises(Refusal):
            put(*place)
    assert opened == []
    put(part, MALLORY.peer_id)
    assert opened == [sealed]


def ask(member: Member, remote: str, asker: bytes) -> Iterator[bytes | None]:
    request = msgspec.msgpack.encode(LargeRequest(record_id(HELD), 0, asker))
    return member.answering.handle(LARGE_PROTOCOL, remote, request)


def test_who_asks_with_another_s_record_is_charged_and_nothing_is_decoded(opened: list[bytes]) -> None:
    member, stranger = make_member(), Identity.generate().peer_id
    member.records.hold(HELD)
    opened.clear()  # of the manifest
    for asker in (fresh(), b"no record", fresh()[:-1] + b"?"):
        with pytest.raises(Refusal):
            list(ask(member, stranger, asker))
    assert member.complaints.take() == [(stranger, Reason.BAD_REQUEST)] * 3 and opened == []
    assert list(ask(member, MALLORY.peer_id, fresh())) == [HELD], "its own"


def test_who_asks_with_a_record_that_is_not_read_here_gets_what_it_asked_for() -> None:
    member = make_member()
    member.records.hold(HELD)
    expired = seal_peer_record(MALLORY, PeerRecord(RUN, MALLORY.peer_id, (), "", (), "peer", "1", NOW - 1.0))
    for asker in (expired, fresh(run_id="other-run"), fresh(tasks=SHORT)):
        assert list(ask(member, MALLORY.peer_id, asker)) == [HELD]
    assert member.complaints.take() == []


def test_a_roster_of_talkative_peers_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = MemoryTransport(MemoryHub(), "me")
    transport.start()
    tasks = tuple(f"{number:045}" for number in range(MAX_TOLD_TASKS))
    records = tuple(PeerRecord(RUN, f"{number:052}", (), "m", tasks, "peer", "1", NOW) for number in range(1_024))
    monkeypatch.setattr(transport, "peers", lambda: records)
    write_roster(tmp_path, build_roster(transport, PeerBook(SafetySettings(), lambda: NOW), NOW))
    (row, *others) = read_roster(tmp_path).peers
    assert len(others) == 1_023 and row.tasks == tasks[: MAX_ROW_CHARS // 45]
    assert (tmp_path / "peers.json").stat().st_size < 2 * 2**20


def test_the_page_reads_a_torn_roster_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def counted(folder: Path) -> object:
        read.append(folder)
        return read_roster(folder)

    monkeypatch.setattr("swarm.telemetry.nodes.read_roster", counted)
    (tmp_path / "peers.json").write_bytes(b'{"time": 1, "peers": [')
    node = NodeReader(tmp_path)
    for _ in range(3):
        node.read()
    assert len(read) == 1 and node.roster is None
