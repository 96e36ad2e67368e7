"""Downloads of large records from holders that give, lie in wait, or give nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from swarm.errors import PeerUnreachable
from swarm.net import bandwidth as bandwidth_module
from swarm.net.membership import upkeep as upkeep_module
from swarm.net.membership.known_peers import EXCUSED_EVERY_S, RETURNED_S, Returns
from swarm.net.membership.member import Member, Profile
from swarm.net.membership.upkeep import DOWNLOADS_AT_ONCE, HEARD_S, Upkeep
from swarm.net.records.envelope import seal_payload
from swarm.net.records.identity import Identity
from swarm.net.records.large import LARGE_PROTOCOL, MAX_WAITING_PER_PEER, Download, LargeRequest, announce
from swarm.net.records.stores import record_id
from swarm.net.records.wire import Announcement, seal
from swarm.net.runtime import AsyncioRuntime
from swarm.reasons import Reason
from swarm.types import Offer, OfferedGroup

from .records import fast_settings, make_group, make_identity, sealed_manifest


class Swarm:
    """A node whose peers are functions of this class."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bandwidth_module, "PATIENCE_S", 0.05)
        monkeypatch.setattr(upkeep_module, "DOWNLOAD_PAUSE_S", 0.01)
        node = make_identity(folder, "node")
        self.member = Member(fast_settings(), node, Profile(), sealed_manifest(node))
        self.upkeep = Upkeep(self.member, self.ask, AsyncioRuntime())
        self.records: dict[bytes, bytes] = {}
        self.slow: set[str] = set()
        self.silent: set[str] = set()
        self.delays_s: dict[str, float] = {}
        self.asked: list[str] = []
        self.giving: list[str] = []
        self.most_from_one = 0

    async def ask(
        self, peer_id: str, protocol: str, payload: bytes, timeout_s: float, max_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        assert protocol == LARGE_PROTOCOL
        wanted = msgspec.msgpack.decode(payload, type=LargeRequest)
        self.asked.append(peer_id)
        self.giving.append(peer_id)
        self.most_from_one = max(self.most_from_one, self.giving.count(peer_id))
        try:
            await asyncio.sleep(0)
            if peer_id in self.silent:
                await asyncio.Event().wait()
            await asyncio.sleep(self.delays_s.get(peer_id, 0.0))
            if peer_id in self.slow:
                yield b""
                await asyncio.Event().wait()
            if wanted.record_id not in self.records:
                raise PeerUnreachable("not held here")
            yield self.records[wanted.record_id][wanted.offset :]
        finally:
            self.giving.remove(peer_id)

    @property
    def run_id(self) -> str:
        assert self.member.run.manifest is not None
        return self.member.run.manifest.run_id

    def announce(self, announcer: Identity, count: int) -> list[bytes]:
        records = [os.urandom(1_200_000) for _ in range(count)]
        self.announce_all(announcer, records)
        return records

    def announce_all(self, announcer: Identity, records: list[bytes]) -> None:
        """Announce these, and hold them."""
        for record in records:
            self.records[record_id(record)] = record
            self.member.records.heard()
            self.member.records.receive_gossip(announcer.peer_id, announce(announcer, self.run_id, record))

    def arrive(self, records: list[bytes]) -> None:
        """Wait until these have been fetched, and nothing else."""

        async def run() -> int:
            slots = [asyncio.create_task(self.upkeep.download()) for _ in range(DOWNLOADS_AT_ONCE)]
            arrived = 0
            try:
                async with asyncio.timeout(30):
                    while arrived < len(records):
                        arrived += len(self.member.records.inbox.drain())
                        await asyncio.sleep(0.001)
            finally:
                for slot in slots:
                    slot.cancel()
                await asyncio.gather(*slots, return_exceptions=True)
            return arrived

        assert asyncio.run(run()) == len(records)
        assert all(self.member.records.store.has_seen(record_id(record)) for record in records)


@pytest.fixture
def swarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Swarm:
    return Swarm(tmp_path, monkeypatch)


def test_no_peer_holds_more_than_one_slot(swarm: Swarm) -> None:
    alice, bob = Identity.generate(), Identity.generate()
    swarm.member.peers.in_run = frozenset({alice.peer_id, bob.peer_id})
    sent = swarm.announce(alice, MAX_WAITING_PER_PEER) + swarm.announce(bob, MAX_WAITING_PER_PEER)
    swarm.arrive(sent)
    assert swarm.most_from_one == 1


def test_slow_holders_are_given_up_for_others_told_of_and_left_alone(swarm: Swarm) -> None:
    alice, honest = Identity.generate(), Identity.generate().peer_id
    hostile = [Identity.generate() for _ in range(DOWNLOADS_AT_ONCE)]
    swarm.slow = {each.peer_id for each in hostile}
    swarm.member.peers.in_run = frozenset({alice.peer_id, honest, *swarm.slow})
    sent = [record for each in hostile for record in swarm.announce(each, MAX_WAITING_PER_PEER)]
    sent += swarm.announce(alice, 2)
    swarm.arrive(sent)
    assert all(swarm.asked.count(peer_id) == 1 for peer_id in swarm.slow), "once slow, not asked again for a while"
    complaints = [each for each in swarm.member.complaints.take() if each[1] != "bad_gift"]
    assert sorted(complaints) == sorted((peer_id, "slow_holder") for peer_id in swarm.slow)
    assert swarm.member.complaints.take() == [] and swarm.member.counters.snapshot()["slow_holder"] == len(swarm.slow)


def test_newcomers_that_give_as_slowly_as_they_may_leave_an_author_of_use_its_place(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bandwidth_module, "PATIENCE_S", 60.0)
    slow, member = [Identity.generate() for _ in range(DOWNLOADS_AT_ONCE)], Identity.generate()
    swarm.slow = {each.peer_id for each in slow}
    swarm.member.peers.in_run = frozenset({member.peer_id, *swarm.slow})
    swarm.member.records.trust({member.peer_id})
    for each in slow:
        swarm.announce(each, 1)
    swarm.arrive(swarm.announce(member, 2))


def test_announced_noise_is_charged_to_its_announcer(swarm: Swarm) -> None:
    """Whoever gave it: the announcer signed the digests that it agrees with."""
    mallory, victim, holder = Identity.generate(), Identity.generate(), Identity.generate().peer_id
    swarm.member.peers.in_run = frozenset({holder})
    forged = bytearray(seal(victim, swarm.run_id, "group", make_group(swarm.run_id, victim.peer_id)))
    forged[-1] ^= 1
    elsewhere = seal(mallory, "other-run", "group", make_group("other-run", mallory.peer_id))
    made = seal(victim, swarm.run_id, "group", make_group(swarm.run_id, victim.peer_id, -1))
    records = [os.urandom(1_200_000), bytes(forged), elsewhere, made]
    swarm.announce_all(mallory, records)
    swarm.arrive(records)
    assert set(swarm.asked) == {holder}
    assert swarm.member.complaints.take() == [(mallory.peer_id, Reason.BAD_GIFT)] * len(records)


def test_chunks_that_are_not_the_announced_record_are_charged_to_its_announcer(swarm: Swarm) -> None:
    mallory, record = Identity.generate(), os.urandom(1_000)
    announced = Announcement(swarm.run_id, mallory.peer_id, bytes(16), len(record), (record_id(record),))
    download = Download(announced)
    download.feed(record)
    with pytest.raises(PeerUnreachable):
        swarm.member.records.receive_fetched(download)
    assert swarm.member.complaints.take() == [(mallory.peer_id, Reason.BAD_GIFT)]


def test_a_holder_of_false_chunks_gets_no_announcer_blamed(swarm: Swarm) -> None:
    alice, mallory, honest = Identity.generate(), Identity.generate().peer_id, Identity.generate().peer_id
    record = seal(alice, swarm.run_id, "group", make_group(swarm.run_id, alice.peer_id))
    swarm.member.peers.in_run = frozenset({mallory})
    swarm.announce_all(alice, [record])
    asked = swarm.ask

    async def ask(peer_id: str, *request: object):  # type: ignore[no-untyped-def]
        if peer_id == mallory:
            swarm.member.peers.in_run = frozenset({mallory, honest})
            yield os.urandom(len(record))
        else:
            async for chunk in asked(peer_id, *request):  # type: ignore[arg-type]
                yield chunk

    swarm.upkeep._ask = ask  # type: ignore[assignment]
    swarm.arrive([record])
    assert swarm.asked == [honest] and swarm.member.counters.snapshot()["holders_failed"] >= 1
    assert swarm.member.complaints.take() == []


def test_a_record_of_a_later_kind_is_charged_to_nobody(swarm: Swarm) -> None:
    alice = Identity.generate()
    swarm.member.peers.in_run = frozenset({alice.peer_id})
    record = seal_payload(alice, swarm.run_id, "video", b"later")
    swarm.announce_all(alice, [record])
    swarm.arrive([record])
    assert swarm.member.complaints.take() == []


def give_up(swarm: Swarm, author: str) -> None:
    """Choose a group on offer, and ask until the time for it is over."""
    before = swarm.member.counters.snapshot().get("fetch_failures", 0)
    offer = Offer(os.urandom(16), os.urandom(16), 1_000, "t", 4, 0.5, 0.5, b"12345678", 120.0)
    swarm.member.records.pull(OfferedGroup(author, offer), 0.0)
    swarm.member.records.queue_pulls()

    async def run() -> None:
        slot = asyncio.create_task(swarm.upkeep.pull())
        async with asyncio.timeout(30):
            while swarm.member.counters.snapshot().get("fetch_failures", 0) == before:
                await asyncio.sleep(0.001)
        slot.cancel()
        await asyncio.gather(slot, return_exceptions=True)

    asyncio.run(run())


def test_who_gives_nothing_is_charged_while_others_are_heard(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_module, "HEARD_S", 600.0)  # on a busy machine, too
    author = Identity.generate().peer_id
    swarm.member.records.heard()
    give_up(swarm, author)
    assert swarm.member.complaints.take() == [(author, Reason.WITHHELD)]


def test_nobody_is_charged_while_nobody_is_heard(swarm: Swarm) -> None:
    author = Identity.generate().peer_id
    give_up(swarm, author)
    swarm.slow = {author}
    give_up(swarm, author)
    assert swarm.member.complaints.take() == []


def test_one_that_was_heard_before_the_link_was_lost_does_not_count(swarm: Swarm) -> None:
    swarm.member.records.heard()
    swarm.member.records.heard_at -= 2 * HEARD_S
    give_up(swarm, Identity.generate().peer_id)
    assert swarm.member.complaints.take() == []


def test_who_was_just_restarted_is_not_charged_for_what_its_last_process_offered(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep_module, "HEARD_S", 600.0)  # on a busy machine, too
    author = Identity.generate().peer_id
    swarm.member.records.heard()
    for connected in ({author}, set(), {author}):
        swarm.member.peers.update(frozenset(connected), ())
    give_up(swarm, author)
    assert swarm.member.complaints.take() == []


def test_only_a_return_in_an_hour_excuses_and_only_for_a_while() -> None:
    returns = Returns()
    returns.update((), ("a",), 0.0)
    assert not returns.excuse("a", 1.0), "it came for the first time"
    for now, excused in ((100.0, True), (200.0, False), (100.0 + EXCUSED_EVERY_S, True)):
        returns.update(("a",), (), now - 1)
        returns.update((), ("a",), now)
        assert returns.excuse("a", now + 1) == excused
        assert not returns.excuse("a", now + RETURNED_S + 1)
