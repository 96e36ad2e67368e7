"""Repair and large records against stores in memory, honest and lying."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator

import msgspec
import pytest
from hypothesis import given, strategies as st

from swarm.errors import PeerUnreachable, Refusal
from swarm.net.records import large as large_module, repair as repair_module
from swarm.net.records.envelope import MAX_CHUNK_BYTES, read_record
from swarm.net.records.feed import Feed
from swarm.net.records.identity import Identity
from swarm.net.records.large import (
    LARGE_PROTOCOL,
    MAX_PER_ACCOUNT,
    MAX_WAITING,
    MAX_WAITING_PER_PEER,
    Download,
    DownloadQueue,
    Referrals,
    announce,
    answer_large,
    holders,
)
from swarm.net.records.repair import (
    GIVE_PROTOCOL,
    HAVE_PROTOCOL,
    MAX_GIVEN,
    RecordReader,
    Repair,
    answer_give,
    answer_have,
)
from swarm.net.records.stores import Held, RecordStore, record_id
from swarm.net.records.wire import Announcement, check_seal, make_run_id, open_announcement, seal_announcement

Serve = Callable[[str, bytes], Iterator[bytes]]


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Peer:
    """Answers from a store, or however a test says."""

    def __init__(self, serve: Serve | None = None, clock: Clock | None = None) -> None:
        self.store = RecordStore(100_000, 2**28, 120.0, clock or Clock())
        self.asked: list[str] = []
        self._serve = serve or self.honest

    def honest(self, protocol: str, request: bytes) -> Iterator[bytes]:
        if protocol == HAVE_PROTOCOL:
            return iter([answer_have(self.store, request)])
        if protocol == GIVE_PROTOCOL:
            return answer_give(self.store, Feed(), request)
        return answer_large(self.store, Referrals(lambda peer_id, sealed: True), "me", request)

    async def fetch(self, peer_id: str, protocol: str, payload: bytes, max_bytes: int) -> AsyncGenerator[bytes, None]:
        self.asked.append(protocol)
        try:
            for chunk in self._serve(protocol, payload):
                max_bytes -= len(chunk)
                if max_bytes < 0:
                    raise PeerUnreachable("more than was asked for")
                yield chunk
        except LookupError as error:
            raise PeerUnreachable("not here") from error


class Node:
    def __init__(self, peer: Peer) -> None:
        self.clock = Clock()
        self.store = RecordStore(100_000, 2**28, 120.0, self.clock)
        self.got: list[tuple[bytes, float]] = []
        self.repair = Repair(self.store, peer.fetch, self._take, every_s=5.0, backfill_s=120.0, clock=self.clock)

    def _take(self, helper: str, record: bytes, age_s: float) -> None:
        if self.store.add(record, age_s):
            self.got.append((record, age_s))

    def run(self) -> None:
        asyncio.run(self.repair.round("peer"))


def test_what_is_missing_comes_once_and_with_its_age() -> None:
    clock = Clock()
    peer = Peer(clock=clock)
    node = Node(peer)
    for name in (b"a", b"b", b"c"):
        peer.store.add(name)
    node.store.add(b"b")
    clock.now += 30
    peer.store.add(b"still on its way")
    node.run()
    assert sorted(node.got) == [(b"a", 30.0), (b"c", 30.0)]
    node.run()
    assert len(node.got) == 2 and peer.asked == [HAVE_PROTOCOL, GIVE_PROTOCOL, HAVE_PROTOCOL]


def test_many_records_come_in_batches_and_one_round_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair_module, "MAX_BATCHES", 2)
    clock = Clock()
    peer = Peer(clock=clock)
    for i in range(3 * MAX_GIVEN):
        peer.store.add(b"%d" % i)
    clock.now += 10
    node = Node(peer)
    node.run()
    assert len(node.got) == 2 * MAX_GIVEN
    node.run()
    assert len(node.got) == 3 * MAX_GIVEN


def test_first_rounds_backfill_and_later_ones_ask_for_what_is_recent() -> None:
    node = Node(Peer())
    windows = []
    for _ in range(5):
        windows.append(node.repair.window_s())
        node.run()
    assert windows == [120, 120, 120, 32, 32]
    node.clock.now += 60
    assert node.repair.window_s() == 92
    node.clock.now += 600
    assert node.repair.window_s() == 120


def listing(*held: Held) -> bytes:
    return msgspec.msgpack.encode(held)


def gift(name: bytes, record: bytes) -> bytes:
    return name + len(record).to_bytes(4, "big") + record


GOOD = Held(record_id(b"good"), 4, 5.0)


@pytest.mark.parametrize(
    ("have", "give"),
    [
        (b"junk", b""),
        (listing(GOOD)[:-1], b""),
        (msgspec.msgpack.encode([1, 2]), b""),
        (listing(GOOD), gift(GOOD.record_id, b"evil")),
        (listing(GOOD), gift(record_id(b"other"), b"other")),
        (listing(GOOD), gift(GOOD.record_id, b"good")[:-1]),
        (listing(GOOD), gift(GOOD.record_id, b"good") * 2),
        (listing(GOOD), GOOD.record_id + b"\xff\xff\xff\xff"),
        (listing(GOOD), bytes(2**20)),
        (listing(Held(record_id(b"good"), 4, -1.0)), b""),
        (listing(Held(record_id(b"good"), 4, float("nan"))), b""),
        (listing(Held(record_id(b"good"), -4, 5.0)), b""),
        (listing(Held(b"short", 4, 5.0)), b""),
    ],
)
def test_a_liar_is_found_out(have: bytes, give: bytes) -> None:
    node = Node(Peer(lambda protocol, request: iter([have if protocol == HAVE_PROTOCOL else give])))
    with pytest.raises(PeerUnreachable):
        node.run()
    assert [record for record, _ in node.got] in ([], [b"good"])


def test_records_that_cannot_be_are_not_asked_for() -> None:
    names = [bytes([i]) * 16 for i in range(2)]
    absurd = listing(Held(names[0], 2**40, 5.0), Held(names[1], 10, 1e9))
    peer = Peer(lambda protocol, request: iter([absurd]))
    Node(peer).run()
    assert peer.asked == [HAVE_PROTOCOL]


@given(st.lists(st.binary(max_size=40), unique=True, max_size=8), st.integers(1, 30))
def test_gifts_are_read_however_they_are_cut(records: list[bytes], step: int) -> None:
    answer = b"".join(gift(record_id(record), record) for record in records)
    reader = RecordReader([record_id(record) for record in records])
    found = [got for start in range(0, len(answer), step) for got in reader.feed(answer[start : start + step])]
    reader.close()
    assert found == records


@given(st.binary(max_size=100))
def test_junk_gifts_are_refused(junk: bytes) -> None:
    reader = RecordReader([record_id(b"x")])
    try:
        assert list(reader.feed(junk)) == []
        reader.close()
    except PeerUnreachable:
        pass


@given(st.binary(max_size=60))
def test_junk_requests_only_raise_what_is_documented(junk: bytes) -> None:
    peer = Peer()
    for protocol in (HAVE_PROTOCOL, GIVE_PROTOCOL, LARGE_PROTOCOL):
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, LookupError):
            assert sum(map(len, peer.honest(protocol, junk))) < 100


ALICE = Identity.generate()
RUN = make_run_id("demo", ALICE.peer_id)
LARGE = bytes(range(256)) * 4 * 1024 * 3 + b"tail"


def opened(sealed: bytes, max_bytes: int = 2**26) -> Announcement:
    return open_announcement(check_seal(read_record(sealed, 2**20), RUN), RUN, max_bytes)


def test_a_large_record_is_announced_and_fetched() -> None:
    announcement = opened(announce(ALICE, RUN, LARGE))
    assert announcement.num_bytes == len(LARGE) and len(announcement.chunk_ids) == 13
    peer = Peer()
    peer.store.add(LARGE, listed=False)
    download = Download(announcement)
    assert not download.done
    asyncio.run(download.fetch_from(peer.fetch, "peer"))
    assert download.done and download.record() == LARGE


def test_a_download_goes_on_with_another_holder_where_the_first_one_died() -> None:
    sent = 0

    def dying(protocol: str, request: bytes) -> Iterator[bytes]:
        for start in range(0, len(LARGE) // 2, 100_000):
            yield LARGE[start : start + 100_000]
        raise LookupError("dead")

    class Counting(Peer):
        def honest(self, protocol: str, request: bytes) -> Iterator[bytes]:
            nonlocal sent
            for chunk in super().honest(protocol, request):
                sent += len(chunk)
                yield chunk

    download = Download(opened(announce(ALICE, RUN, LARGE)))
    with pytest.raises(PeerUnreachable):
        asyncio.run(download.fetch_from(Peer(dying).fetch, "dying"))
    with pytest.raises(PeerUnreachable, match="not here"):
        asyncio.run(download.fetch_from(Peer().fetch, "empty"))
    alive = Counting()
    alive.store.add(LARGE, listed=False)
    asyncio.run(download.fetch_from(alive.fetch, "alive"))
    assert download.record() == LARGE
    assert len(LARGE) / 2 <= sent <= len(LARGE) / 2 + MAX_CHUNK_BYTES


@pytest.mark.parametrize("lie", [LARGE[:-1] + b"?", LARGE + b"?", LARGE[:-1], b"", bytes(len(LARGE))])
def test_a_holder_that_lies_is_found_out_within_a_chunk(lie: bytes) -> None:
    def lying(protocol: str, request: bytes) -> Iterator[bytes]:
        for start in range(0, len(lie), MAX_CHUNK_BYTES):
            yield lie[start : start + MAX_CHUNK_BYTES]

    download = Download(opened(announce(ALICE, RUN, LARGE)))
    with pytest.raises(PeerUnreachable):
        asyncio.run(download.fetch_from(Peer(lying).fetch, "liar"))
    honest = Peer()
    honest.store.add(LARGE, listed=False)
    asyncio.run(download.fetch_from(honest.fetch, "honest"))
    assert download.record() == LARGE


def test_chunks_that_do_not_make_up_the_record_are_the_announcers_lie() -> None:
    real = opened(announce(ALICE, RUN, LARGE))
    forged = Announcement(RUN, ALICE.peer_id, record_id(b"other"), real.num_bytes, real.chunk_ids)
    download = Download(forged)
    for start in range(0, len(LARGE), MAX_CHUNK_BYTES):
        download.feed(LARGE[start : start + MAX_CHUNK_BYTES])
    with pytest.raises(PeerUnreachable, match="do not make up"):
        download.record()


def test_announcements_that_cannot_be_are_refused() -> None:
    good = opened(announce(ALICE, RUN, LARGE))
    for name, changes in {
        "oversized": {"num_bytes": 2**27},
        "limits": {"chunk_ids": good.chunk_ids[:-1]},
        "wrong_run": {"run_id": "other"},
        "wrong_peer": {"peer_id": Identity.generate().peer_id},
    }.items():
        forged = msgspec.structs.replace(good, **changes)
        sealed = seal_announcement(ALICE, forged)
        with pytest.raises(Refusal) as refusal:
            opened(sealed)
        assert refusal.value.reason == name
    with pytest.raises(Refusal):
        opened(seal_announcement(ALICE, msgspec.structs.replace(good, record_id=b"short")))


@given(st.binary(max_size=200))
def test_junk_is_no_announcement(junk: bytes) -> None:
    with pytest.raises(Refusal):
        opened(junk)


def test_unfinished_downloads_hold_no_more_than_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_module, "MAX_PARTIAL_BYTES", 500_000)
    waiting = DownloadQueue()
    for _ in range(3):
        download = Download(opened(announce(ALICE, RUN, LARGE)))
        download.feed(LARGE[:300_000])
        waiting.put_back(1.0, download)
    held = [found[1].num_held for _ in range(3) if (found := waiting.take())]
    assert held == [300_000, 0, 0]


def test_waiting_downloads_are_bounded_for_each_announcer() -> None:
    waiting = DownloadQueue()
    announcement = opened(announce(ALICE, RUN, LARGE))
    taken = [waiting.add(announcement, 1.0, "account") for _ in range(MAX_WAITING_PER_PEER + 1)]
    assert taken == [True] * MAX_WAITING_PER_PEER + [False]
    found = waiting.take()
    assert found is not None and not waiting.add(announcement, 1.0, "account")
    waiting.forget(found[1])
    assert waiting.add(announcement, 1.0, "account") and len(waiting) == MAX_WAITING_PER_PEER


def test_who_is_asked_for_a_record() -> None:
    download = Download(opened(announce(ALICE, RUN, LARGE)))
    assert holders(download, {"b", ALICE.peer_id, "a"}, list.sort) == [ALICE.peer_id, "a", "b"]
    assert holders(download, {"b"}) == ["b"]


def announced(identity: Identity, number: int) -> Announcement:
    return Announcement(RUN, identity.peer_id, number.to_bytes(16, "big"), 5, (bytes(16),))


def test_junk_announcements_hold_up_no_honest_download() -> None:
    waiting = DownloadQueue()
    junk = [waiting.add(announced(Identity.generate(), k), 1.0, "strangers") for k in range(200)]
    assert sum(junk) == MAX_PER_ACCOUNT
    for k in range(4):
        assert waiting.add(announced(ALICE, 1_000 + k), 1.0, ALICE.peer_id)
    taken = []
    for _ in range(8):
        found = waiting.take()
        assert found is not None
        taken.append(found[1].account)
        waiting.put_back(*found)
    assert taken == ["strangers", ALICE.peer_id] * 4, "they take turns"


def test_full_of_some_there_is_a_place_for_another() -> None:
    waiting = DownloadQueue()
    for account in range(MAX_WAITING // MAX_PER_ACCOUNT):
        for k in range(MAX_PER_ACCOUNT):
            assert waiting.add(announced(Identity.generate(), 100 * account + k), 1.0, f"account {account}")
    for k in range(3):
        assert waiting.add(announced(ALICE, 10_000 + k), 1.0, ALICE.peer_id)
    assert len(waiting) == MAX_WAITING
    found = {waiting.take()[1].account for _ in range(5)}  # type: ignore[index]
    assert ALICE.peer_id in found
