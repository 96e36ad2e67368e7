"""Lists of open runs: who gets into one, what a visitor believes, and what ten thousand fake runs do."""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace

from swarm.errors import PeerUnreachable
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.net.records.wire import SealedManifest, open_manifest, seal_manifest
from swarm.net.services import runs as module
from swarm.net.services.runs import (
    CHECK_S,
    KEEP_S,
    LIFE_S,
    MAX_BYTES,
    MAX_CONTENT_BYTES,
    MAX_LISTED_BYTES,
    MAX_PER_FOUNDER,
    MAX_PER_HOST,
    MAX_REMEMBERED,
    MAX_RUNS,
    RUNS_PROTOCOL,
    Listings,
    ListReply,
    ListRequest,
    OpenRun,
    RunIndex,
    ask_listing,
    ask_runs,
    serve_listings,
    serve_runs,
)
from swarm.types import RunManifest, TaskSpec

from .records import make_manifest

FOUNDER = Identity.generate()
HOST = "203.0.113.7"


def sealed(name: str = "sums", founder: Identity = FOUNDER, **changes: object) -> SealedManifest:
    manifest: RunManifest = replace(make_manifest(founder, name), **changes)
    return SealedManifest(seal_manifest(founder, manifest), manifest)


class Members:
    """Where members of runs answer: manifests by multiaddr."""

    def __init__(self) -> None:
        self.at: dict[str, SealedManifest] = {}
        self.dialled: list[str] = []

    def put(self, run: SealedManifest, peer_id: str, port: int = 4001, host: str = HOST) -> ListRequest:
        self.at[f"/ip4/{host}/tcp/{port}/p2p/{peer_id}"] = run
        return ListRequest(run.manifest.run_id, peer_id, port, 3, ("tiny",))

    def __call__(self, address: str, run_id: str) -> SealedManifest:
        self.dialled.append(address)
        found = self.at.get(address)
        if found is None:
            raise PeerUnreachable("nobody is there")
        try:
            return SealedManifest(found.sealed, open_manifest(found.sealed, run_id))
        except Exception as error:
            raise PeerUnreachable(str(error)) from error


class Desk:
    """A bootstrap's check of requests, with a clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.hosts: dict[str, tuple[str, ...]] = {}
        self.members = Members()
        self.index = RunIndex(lambda: self.now)
        self._listings = Listings(self.index, lambda peer: self.hosts.get(peer, ()), self.members, lambda: self.now)

    def ask(self, request: ListRequest, host: str = HOST, wait: bool = True, place: str = "") -> ListReply:
        self.hosts["asker"] = (f"{place or f'/ip4/{host}'}/tcp/50000",)
        deadline = time.monotonic() + 10
        while True:
            encoded = self._listings.handle("asker", msgspec.msgpack.encode(request))
            reply = msgspec.msgpack.decode(encoded, type=ListReply)
            if reply.state != "pending" or not wait:
                return reply
            assert time.monotonic() < deadline
            time.sleep(0.005)
            self.later(0.1)

    def later(self, seconds: float) -> None:
        self.now += seconds

    def names(self) -> list[str]:
        return [open_manifest(run.manifest).run_id for run in self.index.runs()]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_run_is_listed_once_its_member_has_answered_at_the_askers_own_address(desk: Desk) -> None:
    run = sealed()
    assert desk.ask(desk.members.put(run, FOUNDER.peer_id)) == ListReply("listed")
    assert desk.members.dialled == [f"/ip4/{HOST}/tcp/4001/p2p/{FOUNDER.peer_id}"]
    assert desk.index.runs() == [OpenRun(run.sealed, desk.members.dialled[0], 3, ("tiny",))]


def test_nobody_has_another_host_dialled_or_lists_what_does_not_answer(desk: Desk) -> None:
    request = desk.members.put(sealed(), FOUNDER.peer_id)
    assert desk.ask(request, host="198.51.100.9").state == "refused"
    assert desk.members.dialled == [f"/ip4/198.51.100.9/tcp/4001/p2p/{FOUNDER.peer_id}"]
    assert desk.names() == []
    desk.hosts["relayed"] = ("/ip4/1.2.3.4/tcp/1/p2p/x/p2p-circuit",)
    answer = desk._listings.handle("relayed", msgspec.msgpack.encode(request))
    assert "relay" in msgspec.msgpack.decode(answer, type=ListReply).detail
    assert len(desk.members.dialled) == 1


@pytest.mark.parametrize("port", [0, 22, 1023, 65_536])
def test_services_of_the_system_are_not_dialled(port: int, desk: Desk) -> None:
    request = {"run_id": "x", "peer_id": FOUNDER.peer_id, "port": port}
    desk.hosts["asker"] = (f"/ip4/{HOST}/tcp/50000",)
    reply = msgspec.msgpack.decode(desk._listings.handle("asker", msgspec.msgpack.encode(request)), type=ListReply)
    assert reply.state == "refused" and desk.members.dialled == []


@pytest.mark.parametrize("request_", [b"", b"\xc1", b"\x90" * 10, msgspec.msgpack.encode({"run_id": "x"})])
def test_any_request_gets_an_answer(request_: bytes, desk: Desk) -> None:
    reply = msgspec.msgpack.decode(desk._listings.handle("asker", request_), type=ListReply)
    assert reply.state == "refused"


def test_a_manifest_that_another_key_signed_or_of_another_run_is_not_listed(desk: Desk) -> None:
    thief = Identity.generate()
    stolen = sealed().manifest
    forged = SealedManifest(seal_manifest(thief, stolen), stolen)
    assert desk.ask(desk.members.put(forged, thief.peer_id)).state == "refused"
    desk.later(2 * KEEP_S)
    other = desk.members.put(sealed("others", thief), thief.peer_id)
    assert desk.ask(replace(other, run_id=stolen.run_id)).state == "refused"
    assert desk.names() == []


def test_only_the_founder_takes_the_place_of_the_member_that_has_it_listed(desk: Desk) -> None:
    run, first, second = sealed(), Identity.generate().peer_id, Identity.generate().peer_id
    assert desk.ask(desk.members.put(run, first, 4001)).state == "listed"
    assert "another member" in desk.ask(desk.members.put(run, second, 4002)).detail
    assert desk.ask(desk.members.put(run, FOUNDER.peer_id, 4003)).state == "listed"
    assert [each.address for each in desk.index.runs()] == [f"/ip4/{HOST}/tcp/4003/p2p/{FOUNDER.peer_id}"]


def test_an_older_manifest_does_not_displace_a_newer_one(desk: Desk) -> None:
    new = sealed()
    old = sealed(created_at=new.manifest.created_at - 100)
    assert desk.ask(desk.members.put(new, FOUNDER.peer_id, 4001)).state == "listed"
    desk.later(2 * KEEP_S)
    assert "newer" in desk.ask(desk.members.put(old, FOUNDER.peer_id, 4002)).detail


def test_a_run_that_asks_no_more_leaves_the_list(desk: Desk) -> None:
    request = desk.members.put(sealed(), FOUNDER.peer_id)
    desk.ask(request)
    desk.later(LIFE_S / 2)
    assert desk.ask(request).state == "listed", "renewed"
    desk.later(LIFE_S - 1)
    assert len(desk.names()) == 1
    desk.later(2)
    assert desk.names() == []


def test_huge_manifests_are_not_listed(desk: Desk) -> None:
    source = random.Random(0)
    paths = (base64.b64encode(source.randbytes(225)).decode() for _ in range(160))
    tasks = tuple(TaskSpec(f"task {n}", "dataset", 1.0, {"path": path}) for n, path in enumerate(paths))
    run = sealed(tasks=tasks)
    assert len(run.sealed) > MAX_LISTED_BYTES
    assert f"at most {MAX_LISTED_BYTES} bytes" in desk.ask(desk.members.put(run, FOUNDER.peer_id)).detail


def bomb(name: str = "bomb", founder: Identity = FOUNDER) -> SealedManifest:
    """A small manifest with a large content."""
    settings: dict[str, object] = {"list": [[] for _ in range(2_000)]}
    run = sealed(name, founder, tasks=tuple(TaskSpec(f"task {n}", "dataset", 1.0, settings) for n in range(250)))
    assert len(run.sealed) < 2**12
    return run


def test_a_small_manifest_that_expands_is_not_listed(desk: Desk) -> None:
    reply = desk.ask(desk.members.put(bomb(), FOUNDER.peer_id))
    assert reply.state == "refused" and f"at most {MAX_CONTENT_BYTES} bytes" in reply.detail
    assert desk.names() == []


def test_a_list_keeps_no_content_of_manifests(desk: Desk) -> None:
    run = sealed(tasks=(TaskSpec("sums", "sums", 1.0, {"digits": 3}),))
    assert desk.ask(desk.members.put(run, FOUNDER.peer_id)).state == "listed"
    (entry,) = desk.index._entries.values()
    assert not any(isinstance(each, RunManifest) for each in msgspec.structs.astuple(entry))


def test_a_failed_check_does_not_tell_whether_the_port_is_closed(desk: Desk) -> None:
    """A closed port fails at once, an open one after a while: several may share the asker's address."""
    request = ListRequest("sums-x", FOUNDER.peer_id, 4001)
    assert desk.ask(request, wait=False).state == "pending"
    deadline = time.monotonic() + 10
    while not any(check.reply for check in desk._listings._checks.values()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    desk.later(CHECK_S - 0.1)
    assert desk.ask(request, wait=False).state == "pending"
    desk.later(0.2)
    assert desk.ask(request, wait=False).state == "refused"


def test_addresses_of_one_ipv6_network_are_one_host(desk: Desk) -> None:
    for number in range(2 * MAX_PER_HOST):
        founder, host = Identity.generate(), f"2001:db8:0:7::{number + 1:x}"
        run = sealed(f"fake-{number}", founder)
        desk.members.at[f"/ip6/{host}/tcp/4001/p2p/{founder.peer_id}"] = run
        request = ListRequest(run.manifest.run_id, founder.peer_id, 4001)
        desk.later(2 * KEEP_S)
        desk.ask(request, place=f"/ip6/{host}")
    assert len(desk.names()) == MAX_PER_HOST
    assert all("/ip6/2001:db8:0:7::" in address for address in desk.members.dialled)


def test_a_visitor_is_not_exhausted_by_a_list_of_bombs(
    pair: tuple[MemoryTransport, MemoryTransport],
) -> None:
    keeper, visitor = pair
    address = f"/ip4/{HOST}/tcp/4001/p2p/{FOUNDER.peer_id}"
    bombs = [OpenRun(bomb(f"bomb-{number}").sealed, address) for number in range(MAX_RUNS)]
    keeper.serve(RUNS_PROTOCOL, lambda remote, request: msgspec.msgpack.encode(bombs))
    started = time.thread_time()
    found = ask_runs(visitor, "keeper", 5.0)
    assert time.thread_time() - started < 5
    assert [each.name for each in found] == ["bomb-0"], "the first may be the keeper's own"
    assert not any(task.settings for task in found[0].manifest.tasks)


def test_ten_thousand_fake_runs_of_one_address_are_few_checks_and_fewer_entries(desk: Desk) -> None:
    names = [Identity.generate() for _ in range(40)]
    for number in range(10_000):
        founder = names[number % len(names)]
        desk.ask(ListRequest(f"fake-{number}", founder.peer_id, 4001), wait=False)
        desk.later(0.01)
    assert len(desk.members.dialled) <= MAX_PER_HOST * (10_000 * 0.01 / KEEP_S + 1)
    assert len(desk._listings._checks) <= MAX_REMEMBERED
    for number in range(10):
        desk.later(2 * KEEP_S)
        founder = names[number]
        desk.ask(desk.members.put(sealed(f"fake-{number}", founder), founder.peer_id))
    assert len(desk.names()) == MAX_PER_HOST
    desk.later(2 * KEEP_S)
    honest = desk.members.put(sealed(), FOUNDER.peer_id, host="198.51.100.9")
    assert desk.ask(honest, host="198.51.100.9").state == "listed", "others are not kept out"


def test_what_is_listed_is_bounded_whoever_asks() -> None:
    index = RunIndex()
    founders = [Identity.generate() for _ in range(20)]
    for number in range(600):
        run = sealed(f"run-{number}", founders[number % len(founders)] if number < 300 else Identity.generate())
        index.add(OpenRun(run.sealed), run.manifest, "peer", f"host-{number}")
    assert len(index.runs()) == MAX_RUNS
    per_founder: dict[str, int] = {}
    for each in index.runs():
        founder = open_manifest(each.manifest).founder
        per_founder[founder] = per_founder.get(founder, 0) + 1
    assert max(per_founder.values()) == MAX_PER_FOUNDER
    assert sum(len(each.manifest) for each in index.runs()) <= MAX_BYTES


@pytest.fixture
def pair() -> Iterator[tuple[MemoryTransport, MemoryTransport]]:
    hub = MemoryHub()
    keeper, visitor = MemoryTransport(hub, "keeper", sealed("own")), MemoryTransport(hub, "visitor")
    for each in (keeper, visitor):
        each.start()
    yield keeper, visitor
    for each in (keeper, visitor):
        each.close()


def test_a_visitor_sees_the_keepers_own_run_first_and_then_those_listed(
    pair: tuple[MemoryTransport, MemoryTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, visitor = pair
    monkeypatch.setattr(keeper, "observed", lambda peer_id: (f"/ip4/{HOST}/tcp/50000",))
    monkeypatch.setattr(module, "POLL_EVERY_S", 0.01)
    index, members = RunIndex(), Members()
    serve_runs(keeper, index)
    serve_listings(keeper, index, members)
    assert ask_listing(visitor, "keeper", members.put(sealed("sums"), FOUNDER.peer_id), 10.0) == ""
    found = ask_runs(visitor, "keeper", 5.0)
    assert [(each.name, each.address, each.members) for each in found] == [
        ("own", "", 0),
        ("sums", f"/ip4/{HOST}/tcp/4001/p2p/{FOUNDER.peer_id}", 3),
    ]
    assert found[1].manifest.founder == FOUNDER.peer_id


def test_a_lying_list_shows_nothing_that_its_founder_did_not_sign(
    pair: tuple[MemoryTransport, MemoryTransport],
) -> None:
    keeper, visitor = pair
    run, thief = sealed(), Identity.generate()
    address = f"/ip4/{HOST}/tcp/4001/p2p/{FOUNDER.peer_id}"
    listed = [
        OpenRun(seal_manifest(thief, run.manifest), address),
        OpenRun(b"\x00" * 100, address),
        OpenRun(run.sealed, "/ip4/203.0.113.7/tcp/22/p2p/" + FOUNDER.peer_id),
        OpenRun(run.sealed, "/ip4/203.0.113.7/tcp/4001/p2p/nobody"),
        OpenRun(run.sealed, "\x1b[31m" + address),
        OpenRun(run.sealed, f"/ip6/fe80::1%;reboot;/tcp/4001/p2p/{FOUNDER.peer_id}"),
        OpenRun(sealed("future", created_at=time.time() + 10**6).sealed, address),
    ]
    keeper.serve(RUNS_PROTOCOL, lambda remote, request: msgspec.msgpack.encode([*listed, OpenRun(run.sealed, address)]))
    assert [each.address for each in ask_runs(visitor, "keeper", 5.0)] == [address]


@pytest.mark.parametrize(
    "reply",
    [b"", b"\xc1", b"\x90" * 3, msgspec.msgpack.encode([{"manifest": 3}]), b"\xdd\xff\xff\xff\xff", b"x" * 2**22],
)
def test_a_list_that_cannot_be_read_is_a_typed_error(
    reply: bytes, pair: tuple[MemoryTransport, MemoryTransport]
) -> None:
    keeper, visitor = pair
    keeper.serve(RUNS_PROTOCOL, lambda remote, request: reply)
    with pytest.raises(PeerUnreachable):
        ask_runs(visitor, "keeper", 5.0)


def test_a_list_that_drips_is_given_up(
    pair: tuple[MemoryTransport, MemoryTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its chunks comes in time."""
    _, visitor = pair
    sent = []

    def drip(*asked: object) -> Iterator[bytes]:
        for number in range(10_000):
            sent.append(number)
            time.sleep(0.002)
            yield b"\x90"

    monkeypatch.setattr(visitor, "stream", drip)
    with pytest.raises(PeerUnreachable, match="did not send its list of runs within"):
        ask_runs(visitor, "keeper", 0.05)
    assert len(sent) < 100


def test_a_name_that_imitates_another_has_its_founders_digest() -> None:
    imitation = sealed("sums", Identity.generate())
    assert imitation.manifest.run_id != sealed("sums").manifest.run_id
    for name in ("Sums", "sums\x1b[2J", "\u0455ums", "su ms", ""):
        with pytest.raises(ValueError, match="a run's name must be"):
            sealed(name)
