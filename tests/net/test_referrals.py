"""An author names others who have a record, and nobody can make use of that against anybody."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from swarm.errors import PeerUnreachable
from swarm.net.membership import upkeep as upkeep_module
from swarm.net.records.identity import Identity
from swarm.net.records.large import (
    MARK,
    MAX_LINE,
    MAX_NAMED,
    MAX_NAMINGS,
    MAX_RECORDS,
    MAX_REFERRAL_BYTES,
    SENT_ITSELF,
    SETTLED_S,
    LargeRequest,
    Referrals,
    answer_large,
    read_referral,
)
from swarm.net.records.stores import RecordStore, record_id
from swarm.net.records.wire import seal_peer_record
from swarm.reasons import Reason
from swarm.types import PeerRecord

from .test_offers import Pulling
from .test_repair import Clock

NAME, NUM_BYTES = bytes(16), 16_384


class Author:
    """What an author answers to askers whose records are their names."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.referrals = Referrals(lambda peer_id, sealed: sealed == peer_id.encode(), self.clock)

    def ask(self, asker: str, num_bytes: int = NUM_BYTES) -> list[str]:
        """The named; nobody if the record is sent."""
        referral = self.referrals.instead(NAME, num_bytes, asker, asker.encode())
        return [] if referral is None else [each.decode() for each in read_referral(referral)]


@pytest.mark.parametrize("num_askers", [41, 419, 2_000])
def test_what_an_author_sends_grows_with_the_rate_of_two_seconds_at_most(num_askers: int) -> None:
    author, draw = Author(), random.Random(0)
    times = sorted(draw.uniform(0, 30.0) for _ in range(num_askers))
    sent, named, asked_of = 0, Counter[str](), Counter[str]()
    for number, at in enumerate(times):
        author.clock.now = 1_000.0 + at
        if found := author.ask(f"asker {number}"):
            named.update(found)
            asked_of[draw.choice(found)] += 1
        else:
            sent += 1
    assert sent <= SENT_ITSELF + 1.5 * SETTLED_S * num_askers / 30.0
    assert max(named.values()) == MAX_NAMINGS and max(asked_of.values()) <= MAX_NAMINGS


def test_who_asked_a_moment_ago_is_not_named() -> None:
    author = Author()
    assert not any(author.ask(f"asker {number}") for number in range(50))
    author.clock.now += SETTLED_S
    assert author.ask("later") == ["asker 0", "asker 1", "asker 2"]


def test_nobody_is_named_to_itself_or_without_its_own_record() -> None:
    author = Author()
    for number in range(SENT_ITSELF):
        author.referrals.instead(NAME, NUM_BYTES, f"liar {number}", b"another's record")
    author.clock.now += 2 * SETTLED_S
    assert author.ask("first") == [], "nobody can be named"
    author.clock.now += 2 * SETTLED_S
    assert author.ask("first") == [] and author.ask("second") == ["first"]


def test_a_referral_is_smaller_than_the_record() -> None:
    author = Author()
    for number in range(SENT_ITSELF):
        author.ask(f"asker {number}")
    author.clock.now += 2 * SETTLED_S
    assert author.ask("small", num_bytes=20) == [] and author.ask("large", num_bytes=100) != []


def test_what_an_author_remembers_is_bounded() -> None:
    author = Author()
    for number in range(3 * MAX_RECORDS):
        author.referrals.instead(number.to_bytes(16, "big"), NUM_BYTES, "asker", b"asker")
    for number in range(3 * MAX_LINE):
        author.ask(f"asker {number}")
    asked = author.referrals._asked
    assert len(asked) == MAX_RECORDS and len(asked[NAME].line) == MAX_LINE


def test_older_nodes_give_and_get_the_record() -> None:
    class OlderRequest(msgspec.Struct, frozen=True, array_like=True):
        record_id: bytes
        offset: int

    store, referrals = RecordStore(10, 10**6, 60.0), Referrals(lambda peer_id, sealed: True, Clock())
    record = os.urandom(5_000)
    store.add(record)
    older = msgspec.msgpack.encode(OlderRequest(record_id(record), 0))
    for number in range(3 * SENT_ITSELF):
        assert b"".join(answer_large(store, referrals, f"peer {number}", older)) == record
    newer = msgspec.msgpack.encode(LargeRequest(record_id(record), 0, b"own record"))
    assert msgspec.msgpack.decode(newer, type=OlderRequest) == OlderRequest(record_id(record), 0)


@pytest.mark.parametrize(
    "referral",
    [
        MARK,
        MARK + msgspec.msgpack.encode([]),
        MARK + msgspec.msgpack.encode([b"record"] * (MAX_NAMED + 1)),
        MARK + msgspec.msgpack.encode([bytes(1_537)]),
        MARK + msgspec.msgpack.encode(["text"]),
        MARK + b"\x91" * 2_000,
        MARK + bytes(MAX_REFERRAL_BYTES),
    ],
)
def test_a_hostile_referral_is_refused(referral: bytes) -> None:
    with pytest.raises(PeerUnreachable):
        read_referral(referral)


Answer = Callable[[LargeRequest], Iterator[bytes]]


class Referred(Pulling):
    """A node in a swarm of more members than an author sends a record to, and whoever is asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch)
        self.author = Identity.generate()
        self.answers: dict[str, Answer] = {}
        self.requests: list[tuple[str, LargeRequest]] = []
        self.record = b""
        self.member.peers.learn([self._known(Identity.generate()) for _ in range(SENT_ITSELF + 1)])

    async def ask(self, peer_id: str, protocol: str, payload: bytes, *_: object) -> AsyncGenerator[bytes, None]:
        request = msgspec.msgpack.decode(payload, type=LargeRequest)
        self.requests.append((peer_id, request))
        await asyncio.sleep(0)
        for chunk in self.answers.get(peer_id, self.denies)(request):
            if not chunk:
                await asyncio.Event().wait()
            yield chunk

    def _known(self, identity: Identity, run_id: str | None = None, life_s: float = 60.0) -> tuple[PeerRecord, bytes]:
        assert self.member.run.manifest is not None
        expires_at = self.member.clock() + life_s
        run_id = run_id or self.member.run.manifest.run_id
        record = PeerRecord(run_id, identity.peer_id, ("/ip4/127.0.0.1/tcp/1",), "m", (), "peer", "1", expires_at)
        return record, seal_peer_record(identity, record)

    def sealed(self, identity: Identity, **changed: object) -> bytes:
        return self._known(identity, **changed)[1]  # type: ignore[arg-type]

    def pull_one(self, patience_s: float = 30.0) -> None:
        self.record = self.pull(self.author, self.arrived(), patience_s)

    def gives(self, request: LargeRequest) -> Iterator[bytes]:
        yield self.record

    def denies(self, request: LargeRequest) -> Iterator[bytes]:
        raise PeerUnreachable("not held here")

    def refers_to(self, *sealed: bytes) -> Answer:
        """Who asks without its own record gets the record."""
        return lambda request: iter([MARK + msgspec.msgpack.encode(sealed) if request.asker else self.record])

    def asked_of(self) -> list[str]:
        return [peer_id for peer_id, _ in self.requests]


@pytest.fixture
def swarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Referred:
    return Referred(tmp_path, monkeypatch)


def test_the_record_comes_from_one_of_those_whom_the_author_names(swarm: Referred) -> None:
    holder = Identity.generate()
    swarm.answers = {swarm.author.peer_id: swarm.refers_to(swarm.sealed(holder)), holder.peer_id: swarm.gives}
    swarm.pull_one()
    swarm.run(lambda: swarm.arrived() == 1)
    (author, first), (named, second) = swarm.requests
    assert (author, named) == (swarm.author.peer_id, holder.peer_id)
    assert swarm.member.peers.is_record_of(swarm.member.identity.peer_id, first.asker) and second.asker == b""
    assert holder.peer_id in swarm.member.peers.known, "its address is known now"


def test_in_a_small_swarm_an_author_is_told_nothing(swarm: Referred) -> None:
    swarm.member.peers.known = {}
    swarm.answers = {swarm.author.peer_id: swarm.gives}
    swarm.pull_one()
    swarm.run(lambda: swarm.arrived() == 1)
    assert swarm.requests[0][1].asker == b""


def junk(request: LargeRequest) -> Iterator[bytes]:
    yield os.urandom(500)


def silence(request: LargeRequest) -> Iterator[bytes]:
    yield b""


@pytest.mark.parametrize("answer", [None, junk, silence], ids=["denies", "other bytes", "never answers"])
def test_who_is_named_in_vain_costs_little_time_and_the_author_gives(
    swarm: Referred, monkeypatch: pytest.MonkeyPatch, answer: Answer | None
) -> None:
    monkeypatch.setattr(upkeep_module, "REFERRAL_S", 0.2)
    named = [Identity.generate() for _ in range(MAX_NAMED)]
    swarm.answers = {each.peer_id: answer or swarm.denies for each in named}
    swarm.answers[swarm.author.peer_id] = swarm.refers_to(*map(swarm.sealed, named))
    swarm.pull_one()
    swarm.run(lambda: swarm.arrived() == 1)
    others = swarm.asked_of()[1:-1]
    assert swarm.asked_of()[0] == swarm.asked_of()[-1] == swarm.author.peer_id
    assert set(others) <= {each.peer_id for each in named} and len(others) == len(set(others)) <= MAX_NAMED
    assert {peer_id for peer_id, reason in swarm.member.complaints.take()} <= set(others) - {swarm.author.peer_id}
    swarm.requests.clear()
    swarm.pull_one()
    swarm.run(lambda: swarm.arrived() == 2)
    assert swarm.asked_of() == [swarm.author.peer_id], "who misled is asked for the record itself"


def test_a_chain_of_referrals_ends_at_the_first(swarm: Referred) -> None:
    named = [Identity.generate() for _ in range(MAX_NAMED)]
    for identity in (swarm.author, *named):
        referral = MARK + msgspec.msgpack.encode([swarm.sealed(each) for each in named])
        swarm.answers[identity.peer_id] = lambda request, referral=referral: iter([referral])  # type: ignore[misc]
    swarm.pull_one(patience_s=0.0)
    complaints: list[tuple[str, Reason]] = []
    swarm.run(lambda: bool(complaints.extend(swarm.member.complaints.take()) or complaints))
    assert complaints == [(swarm.author.peer_id, Reason.WITHHELD)]
    assert Counter(swarm.asked_of()) == {swarm.author.peer_id: 2} | {each.peer_id: 1 for each in named}


def test_only_members_are_asked_that_signed_it_themselves(swarm: Referred) -> None:
    victim, banned, thief = (Identity.generate() for _ in range(3))
    swarm.member.peers.ban([banned.peer_id])
    node = swarm.member.identity
    record, _ = swarm._known(victim)
    hopeless = {
        "another run's": swarm.sealed(victim, run_id="other"),
        "expired": swarm.sealed(victim, life_s=-1.0),
        "signed by another": seal_peer_record(thief, replace(record)),
        "not a record": victim.peer_id.encode(),
        "banned": swarm.sealed(banned),
        "the asker": swarm.sealed(node),
        "the author": swarm.sealed(swarm.author),
    }
    for number, (what, sealed) in enumerate(hopeless.items(), 1):
        swarm.requests.clear()
        swarm.upkeep._misleading.succeeded(swarm.author.peer_id)
        swarm.answers[swarm.author.peer_id] = swarm.refers_to(sealed, sealed)
        swarm.record = swarm.pull(swarm.author, number)
        swarm.run(lambda number=number: swarm.arrived() == number)  # type: ignore[misc]
        assert swarm.asked_of() == [swarm.author.peer_id] * 2, what


def test_a_flood_of_names_is_not_read(swarm: Referred) -> None:
    referral = MARK + msgspec.msgpack.encode([swarm.sealed(Identity.generate()) for _ in range(64)])
    swarm.answers[swarm.author.peer_id] = lambda request: iter([referral if request.asker else swarm.record])
    swarm.pull_one()
    swarm.run(lambda: swarm.arrived() == 1)
    assert set(swarm.asked_of()) == {swarm.author.peer_id}
