"""Following the feeds of members, without any network: their pace, their promises, and who is chosen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable

import pytest
from msgspec.structs import replace

from swarm.errors import PeerUnreachable
from swarm.net.config import NetworkSettings
from swarm.net.membership import following as following_module
from swarm.net.membership.following import PROVEN_FIRST, Following
from swarm.net.membership.member import Member, Profile
from swarm.net.records.feed import FEED_PROTOCOL, FOLLOWED_AT_ONCE, HELLO_PROTOCOL, Feed, FeedPart, Named, encode
from swarm.net.records.identity import Identity
from swarm.net.records.repair import GIVE_PROTOCOL, answer_give
from swarm.net.records.stores import RecordStore, record_id
from swarm.net.records.wire import make_run_id, seal
from swarm.net.runtime import AsyncioRuntime
from swarm.reasons import Reason

from .records import drained, make_group, sealed_manifest

ALICE, OWN = Identity.generate(), Identity.generate()
RUN_ID = make_run_id("demo", ALICE.peer_id)


def record_of(identity: Identity, sequence: int = 0, size: int = 1) -> bytes:
    group = make_group(RUN_ID, identity.peer_id, sequence)
    text = "".join(chr(0x4E00 + (i * 2_654_435_761 + sequence * 97) % 20_000) for i in range(size))
    completions = (replace(group.completions[0], text=text), group.completions[1])
    return seal(identity, RUN_ID, "group", replace(group, completions=completions))


class Others:
    """The members that a node follows, each with a feed and what it says of it."""

    def __init__(self, *peer_ids: str, settings: NetworkSettings | None = None) -> None:
        self.member = Member(settings or NetworkSettings(), OWN, Profile(), sealed_manifest(ALICE))
        self.following = Following(self.member, self.ask, AsyncioRuntime())
        self.member.peers.update(frozenset(peer_ids), peer_ids)
        self.parts: dict[str, list[bytes]] = {peer_id: [] for peer_id in peer_ids}
        """What each says next."""
        self.feed = Feed()
        """What the honest give."""
        self.mute: set[str] = set()
        """Those that give nothing."""
        self.mean: set[str] = set()
        """Those that give the first record that they are asked for, and not the others."""
        self._runner = asyncio.Runner()
        self.followed: list[str] = []
        self.asked: list[str] = []

    async def ask(
        self, peer_id: str, protocol: str, payload: bytes, timeout_s: float, max_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        if protocol == HELLO_PROTOCOL:
            raise PeerUnreachable("greeted already")
        if protocol == FEED_PROTOCOL:
            self.followed.append(peer_id)
            yield encode(FeedPart())
            while True:
                while self.parts[peer_id]:
                    yield self.parts[peer_id].pop(0)
                await asyncio.sleep(0.005)
        assert protocol == GIVE_PROTOCOL
        self.asked.append(peer_id)
        if peer_id in self.mute:
            raise PeerUnreachable("it gives nothing")
        for chunk in answer_give(RecordStore(1, 1, 1.0), self.feed, payload):
            yield chunk
            if peer_id in self.mean:
                return

    def run(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Follow until something is so."""

        async def run() -> None:
            loops = [self.following.fetch] * 2 + [self.following.follow] * FOLLOWED_AT_ONCE
            tasks = [asyncio.create_task(loop()) for loop in loops]
            try:
                async with asyncio.timeout(timeout_s):
                    while not condition():
                        for task in tasks:
                            assert not task.done()
                        await asyncio.sleep(0.005)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        self._runner.run(run())


def named(*records: bytes) -> bytes:
    return encode(FeedPart((), tuple(Named(record_id(record), len(record)) for record in records)))


def test_a_larger_record_is_fetched_once_from_one_of_those_that_name_it() -> None:
    others = Others("a", "b", "c")
    records = [record_of(ALICE, number, 1_000) for number in range(5)]
    for record in records:
        others.feed.add(record)
    for parts in others.parts.values():
        parts.append(named(*records))
    others.run(lambda: len(others.member.records.store) == 5)
    assert sorted(drained(others.member.records.inbox)) == sorted(records)
    counters = others.member.counters.snapshot()
    assert counters["delivered"] == 5 and counters.get("duplicates", 0) == 0 and len(others.asked) <= 5
    unread = others.member.records.feed.follow("a")
    next(unread)
    assert not isinstance(next(unread), bytes), "who named them has them"


def test_who_names_what_it_does_not_give_is_left_and_another_asked() -> None:
    others = Others("liar", "honest")
    others.mute.add("liar")
    record, never = record_of(ALICE, 0, 1_000), b"there is no such record"
    others.feed.add(record)
    others.parts["liar"] += [named(record, never), encode(FeedPart())]
    others.run(lambda: "liar" in others.asked)
    others.parts["liar"].append(encode(FeedPart()))
    others.parts["honest"].append(named(record))
    others.run(lambda: len(others.member.records.store) == 1)
    counters = others.member.counters.snapshot()
    assert counters["feeds_unkept"] >= 1
    others.parts["liar"] += [named(never)] * 5
    asked = others.asked.count("liar")
    others.run(lambda: others.member.counters.snapshot().get("feeds_failed", 0) >= 1)
    assert others.asked.count("liar") == asked, "not asked meanwhile"


def test_who_gives_few_of_the_records_that_it_names_is_left_too() -> None:
    """Each time it would be asked for the others' records first."""
    others = Others("mean", "honest")
    others.mean.add("mean")
    records = [record_of(ALICE, number, 1_000) for number in range(20)]
    for record in records:
        others.feed.add(record)
    others.parts["mean"].append(named(*records))
    others.run(lambda: others.member.counters.snapshot().get("feeds_unkept", 0) == 1)
    others.parts["honest"].append(named(*records))
    others.run(lambda: len(others.member.records.store) == 20)
    assert others.asked.count("mean") == 1


def test_a_record_that_no_honest_peer_hands_on_ends_the_following_and_is_charged() -> None:
    others = Others("liar", "honest")
    forged = record_of(ALICE)[:-1] + b"?"
    good = record_of(ALICE, 1)
    others.parts["liar"] += [encode(FeedPart((forged,))), encode(FeedPart((good,)))]
    others.run(lambda: others.member.counters.snapshot().get("feeds_failed", 0) == 1)
    assert others.member.complaints.take() == [("liar", Reason.BAD_GIFT)]
    assert len(others.member.records.store) == 0, "nothing more is read there"
    others.parts["honest"].append(encode(FeedPart((good,))))
    others.run(lambda: len(others.member.records.store) == 1)


@pytest.mark.parametrize("chunk", [b"junk", encode(FeedPart())[:-1], bytes(2**18)])
def test_junk_in_a_feed_ends_the_following(chunk: bytes) -> None:
    others = Others("liar")
    others.parts["liar"].append(chunk)
    others.run(lambda: others.member.counters.snapshot().get("feeds_failed", 0) == 1)


def test_a_feed_without_end_is_read_at_the_node_s_own_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has any number of records, of authors without number; others are heard meanwhile."""
    monkeypatch.setattr(following_module, "ITEMS_AT_ONCE", 200.0)
    monkeypatch.setattr(following_module, "ITEMS_PER_S", 100.0)
    others = Others("flood", "honest", settings=NetworkSettings(inbox_records=50))
    others.member.records.trust(())
    flood = [record_of(Identity.generate(), number) for number in range(600)]
    others.parts["flood"] = [encode(FeedPart(tuple(flood[start : start + 20]))) for start in range(0, 600, 20)]
    began = time.monotonic()
    others.run(lambda: others.member.counters.snapshot().get("drop_over_budget", 0) > 0)
    honest = record_of(ALICE)
    others.parts["honest"].append(encode(FeedPart((honest,))))
    others.run(lambda: others.member.records.store.has_seen(record_id(honest)))
    read = 600 - 20 * len(others.parts["flood"])
    assert read <= 2 * (200 + 20) + 100 * (time.monotonic() - began), "a burst for each time that it was followed"
    assert len(others.member.records.store) <= 50 + 1 + 10 * (time.monotonic() - began), "one newcomer's budget"


def test_half_of_those_followed_were_of_use() -> None:
    strangers = [f"stranger-{number}" for number in range(60)]
    useful = [f"useful-{number}" for number in range(6)]
    others = Others(*strangers, *useful)
    others.member.records.trust(useful)
    others.run(lambda: len(others.followed) >= FOLLOWED_AT_ONCE)
    assert sum(peer_id in useful for peer_id in others.followed[:FOLLOWED_AT_ONCE]) >= PROVEN_FIRST


def test_others_take_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following_module, "FOLLOWED_S", (0.01, 0.02))
    others = Others(*(f"member-{number}" for number in range(3 * FOLLOWED_AT_ONCE)))

    def all_followed() -> bool:
        for parts in others.parts.values():
            parts[:] = [encode(FeedPart())]
        return set(others.followed) == others.parts.keys()

    others.run(all_followed)


def test_few_are_followed_as_long_as_there_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following_module, "FOLLOWED_S", (0.01, 0.02))
    others = Others("a", "b")
    for number in range(20):
        for parts in others.parts.values():
            parts.append(encode(FeedPart((record_of(ALICE, number),))))
    others.run(lambda: len(others.member.records.store) == 20 and not any(others.parts.values()))
    assert sorted(others.followed) == ["a", "b"]
