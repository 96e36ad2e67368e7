from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from swarm.errors import PeerUnreachable
from swarm.net.addresses.dial import FREE_FAILURES
from swarm.net.config import NetworkSettings
from swarm.net.membership import dialling as dialling_module
from swarm.net.membership.dialling import (
    ENOUGH_CHOSEN,
    ENOUGH_PEERS,
    MAX_DIALS_AT_ONCE,
    STEADY_AFTER_S,
    Dialling,
)
from swarm.net.membership.member import Member, Profile
from swarm.net.records.identity import Identity
from swarm.net.runtime import AsyncioRuntime
from swarm.types import PeerRecord

from .records import make_identity

NOBODY: frozenset[str] = frozenset()


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    monotonic = __call__


def stranger(expires_at: float = 2_000.0) -> PeerRecord:
    peer_id = Identity.generate().peer_id
    return PeerRecord("run", peer_id, (f"/ip4/10.0.0.9/tcp/9/p2p/{peer_id}",), "", (), "peer", "", expires_at)


@dataclass
class Dials:
    connect: Callable[[str, Sequence[str]], Awaitable[None]]
    dials_claims: bool = False
    uses_relays: bool = False

    def can_dial(self, address: str) -> bool:
        return True


class Node:
    """A `Dialling` whose dials only note what they are told, or fail."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, *bootstrap: str, dials_claims: bool = False
    ) -> None:
        self.clock = Clock()
        monkeypatch.setattr(dialling_module, "time", self.clock)
        identity = make_identity(folder, "node")
        self.member = Member(NetworkSettings(bootstrap=bootstrap), identity, Profile(), None, self.clock)
        self.dialled: list[tuple[str, tuple[str, ...]]] = []
        self.problem: str | None = None
        self.dialling = Dialling(self.member, Dials(self.connect, dials_claims), AsyncioRuntime())

    async def connect(self, peer_id: str, addresses: Sequence[str]) -> None:
        self.dialled.append((peer_id, tuple(addresses)))
        if self.problem:
            raise PeerUnreachable(self.problem)

    def dial_due(self, connected: frozenset[str] = NOBODY) -> list[str]:
        due = self.dialling.due(connected)
        for peer_id, addresses in due.items():
            asyncio.run(self.dialling.dial(peer_id, addresses))
        return list(due)

    def learn(self, *records: PeerRecord) -> None:
        self.member.peers.learn([(record, b"") for record in records])


BOOT, OTHER = Identity.generate().peer_id, Identity.generate().peer_id
BOOTSTRAP = f"/ip4/10.0.0.1/tcp/1/p2p/{BOOT}"


def test_a_peer_is_dialled_wherever_it_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, monkeypatch, BOOTSTRAP)
    node.learn(replace(stranger(), peer_id=BOOT, multiaddrs=(f"/ip4/10.0.0.2/tcp/2/p2p/{BOOT}", BOOTSTRAP)))
    node.member.peers.remembered[BOOT] = ("/ip4/10.0.0.3/tcp/3",)
    node.dial_due()
    assert node.dialled == [(BOOT, ("/ip4/10.0.0.1/tcp/1", "/ip4/10.0.0.2/tcp/2", "/ip4/10.0.0.3/tcp/3"))]


def test_whom_to_dial_depends_on_who_is_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, monkeypatch, BOOTSTRAP)
    fresh, expired, banned = stranger(), stranger(500.0), stranger()
    remembered = Identity.generate().peer_id
    node.learn(fresh, expired, banned, replace(stranger(), multiaddrs=("junk",)), replace(stranger(), multiaddrs=()))
    node.member.peers.remembered[remembered] = ("/ip4/10.0.0.3/tcp/3",)
    node.member.peers.ban({banned.peer_id})
    some, many = (frozenset(Identity.generate().peer_id for _ in range(count)) for count in (1, ENOUGH_PEERS))
    assert set(node.dialling.due(NOBODY)) == {BOOT, fresh.peer_id, expired.peer_id, remembered}
    assert set(node.dialling.due(some)) == {BOOT, fresh.peer_id, remembered}
    assert set(node.dialling.due(some | {BOOT})) == {fresh.peer_id, remembered}
    node.member.peers.in_run = many
    assert set(node.dialling.due(many)) == {BOOT, fresh.peer_id}, "all these may be one that has dialled this node"
    for peer_id in list(many)[:ENOUGH_CHOSEN]:
        asyncio.run(node.dialling.dial(peer_id, ("/ip4/10.0.0.4/tcp/4",)))
    assert set(node.dialling.due(many)) == {BOOT}
    node.member.peers.in_run = NOBODY
    assert set(node.dialling.due(many)) == {BOOT, fresh.peer_id, remembered}, "strangers that are no members"
    node.learn(*(stranger() for _ in range(50)))
    assert len(node.dialling.due(NOBODY)) == MAX_DIALS_AT_ONCE


def test_slow_dials_hold_up_no_bootstrap_and_are_not_begun_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, monkeypatch, BOOTSTRAP)
    node.learn(*(stranger() for _ in range(50)))
    first, *others = node.dialling.due(frozenset({BOOT}))
    assert len(others) == MAX_DIALS_AT_ONCE - 1
    with ExitStack() as dials:
        for peer_id in others:
            dials.enter_context(node.dialling.under_way(peer_id))
        assert list(node.dialling.due(frozenset({BOOT}))) == [first], "the room that is left"
        dials.enter_context(node.dialling.under_way(first))
        assert list(node.dialling.due(NOBODY)) == [BOOT]
        dials.enter_context(node.dialling.under_way(BOOT))
        assert node.dialling.due(NOBODY) == {}
    assert set(node.dialling.due(NOBODY)) > {BOOT}


def test_a_peer_that_has_just_been_dialled_is_not_yet_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, monkeypatch, BOOTSTRAP)
    with node.dialling.under_way(BOOT):
        asyncio.run(node.dialling.dial(BOOT, ("/ip4/10.0.0.1/tcp/1",)))
        assert node.dialling.due(NOBODY) == {}, "the session has not looked yet"
    assert node.dialling.due(frozenset({BOOT})) == {}
    node.clock.now += STEADY_AFTER_S + 1
    assert node.dialling.due(frozenset({BOOT})) == {} and node.dial_due() == [BOOT], (
        "it was never held for one that left"
    )


def test_a_dial_of_the_session_ends_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, monkeypatch, BOOTSTRAP)
    monkeypatch.setattr(dialling_module, "DIAL_TIMEOUT_S", 0.05)

    async def hang(peer_id: str, addresses: Sequence[str]) -> None:
        await asyncio.Event().wait()

    dialling = Dialling(node.member, Dials(hang), AsyncioRuntime())
    assert asyncio.run(dialling.dial(BOOT, ("/ip4/10.0.0.1/tcp/1",))) is False
    assert "could not be dialled within 0.05 s" in dialling.describe()


def test_relays_and_bootstraps_that_are_named_later_are_dialled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = tmp_path / "multiaddrs"
    node = Node(tmp_path, monkeypatch, f"file:{addresses}")
    peers = node.member.peers
    dialling = Dialling(node.member, Dials(node.connect, uses_relays=True), AsyncioRuntime())
    assert dialling.due(NOBODY) == {} == peers.relays
    addresses.write_text(f"{PUBLIC_BOOTSTRAP}\n")
    assert set(dialling.due(NOBODY)) == {BOOT} == set(peers.relays)
    addresses.write_text(f"# with another key\n{PUBLIC_BOOTSTRAP.replace(BOOT, OTHER)}\n")
    assert set(dialling.due(NOBODY)) == {OTHER} == set(peers.relays)


def test_what_failed_is_told_and_tried_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, monkeypatch, BOOTSTRAP)
    assert node.dialling.describe() == "dialling the bootstraps"
    node.problem = "connection refused"
    assert node.dial_due() == [BOOT] and node.dial_due() == []
    assert node.dialling.describe() == "no bootstrap reachable: connection refused; next try in 5 s"
    node.clock.now += 5
    assert node.dial_due() == [BOOT] and "next try in 10 s" in node.dialling.describe()
    node.clock.now += 10
    node.problem = None
    assert node.dial_due() == [BOOT] and node.dialling.describe() == "dialling the bootstraps"


def test_a_peer_that_hangs_up_at_once_is_left_alone_for_longer_and_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, monkeypatch, BOOTSTRAP)
    dials = 0
    for _ in range(60):
        dials += len(node.dial_due())
        node.clock.now += 1
    assert dials == 6, "after 1, 2, 4, 8, 16 seconds"
    node.clock.now += 60
    assert node.dial_due() == [BOOT]
    for _ in range(int(STEADY_AFTER_S) + 1):
        node.clock.now += 1
        assert node.dial_due(frozenset({BOOT})) == []
    assert node.dial_due() == [BOOT], "one that stayed is dialled at once when it is lost"


def test_who_is_to_be_asked_is_dialled_whatever_failed_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, monkeypatch, BOOTSTRAP)
    reach = node.dialling.reach
    node.problem = "connection refused"
    node.dial_due()
    with pytest.raises(PeerUnreachable, match="connection refused"):
        asyncio.run(reach(BOOT, NOBODY, 3.0))
    node.problem = None
    assert asyncio.run(reach(BOOT, NOBODY, 3.0)) == 3.0 and len(node.dialled) == 3
    unknown = Identity.generate().peer_id
    for peer_id in (BOOT, unknown):
        assert asyncio.run(reach(peer_id, frozenset({BOOT}), 3.0)) == 3.0 and len(node.dialled) == 3
    node.member.peers.ban({BOOT})
    with pytest.raises(PeerUnreachable, match="banned"):
        asyncio.run(reach(BOOT, NOBODY, 3.0))


def test_a_dial_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, monkeypatch, BOOTSTRAP)

    async def hang(peer_id: str, addresses: Sequence[str]) -> None:
        await asyncio.Event().wait()

    dialling = Dialling(node.member, Dials(hang), AsyncioRuntime())
    with pytest.raises(PeerUnreachable, match="could not be dialled within 0.05 s"):
        asyncio.run(dialling.reach(BOOT, NOBODY, 0.05))


PUBLIC_BOOTSTRAP = f"/ip4/8.8.8.8/tcp/1/p2p/{BOOT}"


def told(*addresses: str) -> PeerRecord:
    peer_id = Identity.generate().peer_id
    multiaddrs = tuple(f"{address}/p2p/{peer_id}" for address in addresses)
    return PeerRecord("run", peer_id, multiaddrs, "", (), "peer", "", 2_000.0)


def test_a_request_with_little_time_pauses_no_address(tmp_path: Path) -> None:
    """The answer of a peer that is far away takes longer than some requests wait."""
    far = told("/ip4/44.128.0.9/tcp/9")

    async def never(peer_id: str, addresses: Sequence[str]) -> None:
        await asyncio.Event().wait()

    settings = NetworkSettings(bootstrap=(PUBLIC_BOOTSTRAP,))
    member = Member(settings, make_identity(tmp_path, "n"), Profile(), None, time.time)
    dialling = Dialling(member, Dials(never), AsyncioRuntime())
    member.peers.learn([(far, b"")])
    for _ in range(9):
        with pytest.raises(PeerUnreachable, match="within 0.001 s"):
            asyncio.run(dialling.reach(far.peer_id, NOBODY, 0.001))
    assert dialling.addresses(far.peer_id) == ("/ip4/44.128.0.9/tcp/9",)


def test_in_a_public_run_strangers_name_no_machine_of_this_net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, monkeypatch, PUBLIC_BOOTSTRAP)
    inside = told("/ip4/192.168.1.1/tcp/80", "/ip4/127.0.0.1/tcp/22", "/dns4/localhost/tcp/22", "/ip4/10.1.1.1/tcp/9")
    both = told("/ip4/192.168.1.2/tcp/80", "/ip4/8.8.4.4/tcp/4001")
    node.learn(inside, both)
    node.member.peers.remembered[BOOT] = ("/ip4/10.0.0.3/tcp/3",)
    node.dial_due()
    assert node.dialled == [(BOOT, ("/ip4/8.8.8.8/tcp/1",)), (both.peer_id, ("/ip4/8.8.4.4/tcp/4001",))]
    with pytest.raises(PeerUnreachable, match="public run"):
        asyncio.run(node.dialling.reach(inside.peer_id, NOBODY, 5.0))
    assert len(node.dialled) == 2


@pytest.mark.parametrize("place", ["/ip4/9.9.9.9", "/dns4/N{}.ExAmple."])
def test_fake_records_make_no_flood_of_dials_at_a_third_party(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, monkeypatch, PUBLIC_BOOTSTRAP)

    async def look_up(runtime: AsyncioRuntime, host: str) -> list[str]:
        return ["9.9.9.9"]

    monkeypatch.setattr(AsyncioRuntime, "look_up", look_up)
    fakes = [told(*(f"{place.format(i)}/tcp/{1_000 + 16 * i + k}" for k in range(16))) for i in range(200)]
    node.member.peers.learn([(fake, b"") for fake in fakes], "liar")
    node.problem = "nobody there"
    for _ in range(200):
        node.dial_due(frozenset({BOOT}))
        node.clock.now += 1.0
    at_victim = sum(len(addresses) for _, addresses in node.dialled)
    assert FREE_FAILURES < at_victim <= 30


def test_in_a_private_run_all_is_dialled_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, monkeypatch, BOOTSTRAP)
    peer = told(*(f"/ip4/10.0.0.9/tcp/{port}" for port in range(1, 9)))
    node.learn(peer)
    assert node.dialling.addresses(peer.peer_id) == tuple(f"/ip4/10.0.0.9/tcp/{port}" for port in range(1, 9))


def test_in_a_public_run_peers_that_were_connected_are_seldom_dialled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A go daemon that listens on QUIC, or cannot be watched, also dials what they claimed meanwhile."""
    node = Node(tmp_path, monkeypatch, PUBLIC_BOOTSTRAP, dials_claims=True)
    peers = [told(f"/ip4/44.128.0.{number}/tcp/4001") for number in range(1, 31)]
    useful = told("/ip4/44.128.1.1/tcp/4001")
    node.learn(*peers, useful)
    node.member.records.trust([useful.peer_id])
    met = frozenset({BOOT, useful.peer_id, *(peer.peer_id for peer in peers)})
    assert node.dial_due(met) == []
    for _ in range(119):
        node.dial_due()
        node.clock.now += 1.0
    again = [peer_id for peer_id, _ in node.dialled]
    assert BOOT in again and useful.peer_id in again
    assert sum(peer_id not in (BOOT, useful.peer_id) for peer_id in again) == 3 + 1
    left = next(peer.peer_id for peer in peers if peer.peer_id not in again)
    with pytest.raises(PeerUnreachable, match="was connected before"):
        asyncio.run(node.dialling.reach(left, NOBODY, 5.0))
