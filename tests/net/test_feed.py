"""What followers read in a feed, and what they do with it; and who is greeted. No network."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec
import pytest

from swarm.errors import PeerUnreachable, Refusal
from swarm.net.membership.known_peers import CurrentRun
from swarm.net.membership.member import FORGOTTEN_AFTER_S, Greetings
from swarm.net.records.envelope import MAX_CHUNK_BYTES
from swarm.net.records.feed import (
    FEED_BYTES,
    FEED_RECORDS,
    MAX_ITEMS,
    OTHERS_BYTES,
    OWN_BYTES,
    PART_BYTES,
    READERS,
    REPLAYED_S,
    SIGN_OF_LIFE_S,
    WAITS_S,
    Change,
    Feed,
    FeedPart,
    Hello,
    decode_part,
    encode,
)
from swarm.net.records.identity import Identity
from swarm.net.records.stores import record_id

from .records import make_manifest, sealed_manifest

ALICE = Identity.generate()


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def feed(clock: Clock) -> Feed:
    return Feed(clock)


def news(parts: Iterator[object]) -> FeedPart:
    """All that is new for a follower now."""
    records: list[bytes] = []
    named = []
    for chunk in parts:
        if not isinstance(chunk, bytes):
            break
        assert len(chunk) <= MAX_CHUNK_BYTES, "a part is one chunk"
        part = decode_part(chunk)
        records += part.records
        named += part.named
    return FeedPart(tuple(records), tuple(named))


def test_small_records_come_at_once_and_larger_ones_by_id(feed: Feed) -> None:
    parts = feed.follow("bob")
    assert news(parts) == FeedPart()
    own, large_own = b"o" * OWN_BYTES, b"O" * (OWN_BYTES + 1)
    small, larger = b"s" * OTHERS_BYTES, b"l" * (OTHERS_BYTES + 1)
    feed.add(own, is_own=True)
    feed.add(large_own, is_own=True)
    feed.add(small, "carol")
    feed.add(larger, "carol")
    found = news(parts)
    assert found.records == (own, small)
    assert [(each.record_id, each.num_bytes) for each in found.named] == [
        (record_id(record), len(record)) for record in (large_own, larger)
    ]
    assert feed.get(record_id(larger)) == larger and feed.get(bytes(16)) is None


def test_nothing_is_sent_to_who_has_it(feed: Feed) -> None:
    bob, carol = feed.follow("bob"), feed.follow("carol")
    news(bob), news(carol)
    feed.add(b"1", "bob", "author")
    feed.add(b"2", "author")
    feed.known_to("carol", record_id(b"2"))
    feed.known_to("carol", record_id(b"not here"))
    assert news(bob).records == (b"2",) and news(carol).records == (b"1",)
    feed.add(b"1", "dave")
    assert news(bob) == news(carol) == FeedPart(), "once"


def test_a_follower_is_woken_and_hears_signs_of_life(feed: Feed, clock: Clock) -> None:
    parts = feed.follow("bob")
    waiting = [chunk for chunk in islice(parts, 2) if isinstance(chunk, Change)]
    woken: list[int] = []

    def wake() -> None:
        woken.append(1)

    waiting[0].watch(wake)
    feed.add(b"1")
    assert woken == [1] and news(parts).records == (b"1",)
    waiting[0].unwatch(wake)
    feed.add(b"2")
    assert woken == [1] and news(parts).records == (b"2",)
    clock.now += SIGN_OF_LIFE_S
    assert decode_part(bytes(next(parts))) == FeedPart()  # type: ignore[arg-type]


def test_a_new_follower_gets_what_was_on_its_way(feed: Feed, clock: Clock) -> None:
    feed.add(b"old")
    clock.now += REPLAYED_S + 1
    feed.add(b"recent")
    assert news(feed.follow("bob")).records == (b"recent",)


def test_an_own_record_that_few_have_read_waits_for_the_next_followers(feed: Feed, clock: Clock) -> None:
    """Members choose by chance whom they follow: nobody may follow this node just now, or one that hands nothing on."""
    feed.add(b"others'", "carol")
    feed.add(b"own", is_own=True)
    for index in range(READERS):
        clock.now += REPLAYED_S + 1
        feed.add(b"recent %d" % index, "carol")
        assert news(feed.follow(f"follower {index}")).records == (b"own", b"recent %d" % index)
    clock.now += REPLAYED_S + 1
    assert news(feed.follow("another")) == FeedPart(), "enough have read it"
    feed.add(b"older", is_own=True)
    clock.now += WAITS_S + 1
    assert news(feed.follow("another")) == FeedPart()


def test_who_falls_behind_loses_the_oldest_and_memory_is_bounded(feed: Feed, clock: Clock) -> None:
    parts = feed.follow("bob")
    news(parts)
    for number in range(FEED_RECORDS + 10):
        feed.add(b"%d" % number)
    found = news(parts)
    assert len(found.records) == FEED_RECORDS and found.records[0] == b"10"
    for number in range(40):
        feed.add(bytes([number]) * 1_000_000)
    assert feed._new.num_bytes <= FEED_BYTES and len(feed._new) == FEED_BYTES // 1_000_000


def test_a_part_is_small_however_much_is_new(feed: Feed) -> None:
    parts = feed.follow("bob")
    next(parts)
    for number in range(2 * MAX_ITEMS):
        feed.add(number.to_bytes(2, "big") * (OWN_BYTES // 2), is_own=number % 2 == 0)
    chunks = [chunk for chunk in islice(parts, 200) if isinstance(chunk, bytes)]
    assert max(map(len, chunks)) <= PART_BYTES + OWN_BYTES + 25 * MAX_ITEMS


def test_parts_without_sense_are_refused() -> None:
    for chunk in (b"", b"junk", encode(Hello("run", True)), msgspec.msgpack.encode([[bytes(OWN_BYTES + 1)], []])):
        with pytest.raises(PeerUnreachable, match="cannot be read"):
            decode_part(chunk)
    with pytest.raises(PeerUnreachable, match="cannot be read"):
        decode_part(msgspec.msgpack.encode([[b"1"] * (MAX_ITEMS + 1), []]))


def hello(run_id: str, takes_part: bool = True) -> bytes:
    return encode(Hello(run_id, takes_part))


def test_each_connection_is_greeted_once_by_one_end(clock: Clock) -> None:
    run_id = make_manifest(ALICE).run_id
    greetings = Greetings(CurrentRun(None, sealed_manifest(ALICE)), True, clock)
    changes: list[int] = []
    greetings.on_change = lambda: changes.append(1)
    connected = frozenset({"asked", "asks", "visitor", "other", "mute"})
    assert set(greetings.due(connected)) == connected
    greetings.heard("asked", hello(run_id), knows_us=True)
    assert greetings.answer("asks", hello(run_id)) == hello(run_id)
    greetings.answer("visitor", hello(run_id, takes_part=False))
    greetings.heard("other", hello("another-run"), knows_us=True)
    greetings.failed("mute")
    assert greetings.due(connected) == [] and greetings.members() == {"asked", "asks"} and len(changes) == 2
    clock.now += 6
    assert greetings.due(connected) == ["mute"]
    clock.now += FORGOTTEN_AFTER_S - 5
    assert greetings.due(frozenset({"asks"})) == []
    clock.now += 6
    assert greetings.due(frozenset({"asks"})) == [] and greetings.members() == {"asks"}
    assert greetings.due(frozenset({"asked", "asks"})) == ["asked"], "it was away for long"


def test_who_greets_too_early_is_greeted_when_the_run_is_known(clock: Clock) -> None:
    run = CurrentRun(None, None)
    greetings = Greetings(run, True, clock)
    assert greetings.answer("early", hello("some-run")) == hello("")
    assert greetings.answer("also", hello("")) == hello("")
    assert greetings.members() == {"early"}, "for all that is known"
    run.adopt(sealed_manifest(ALICE).sealed, now=float("inf"))
    assert set(greetings.due(frozenset({"early", "also"}))) == {"early", "also"}
    greetings.heard("early", hello("some-run"), knows_us=True)
    assert greetings.members() == frozenset()


def test_long_or_malformed_greetings_are_refused(clock: Clock) -> None:
    greetings = Greetings(CurrentRun(None, sealed_manifest(ALICE)), True, clock)
    for content in (b"", b"junk", hello("x" * 65), msgspec.msgpack.encode(["run", True, "x" * 2_000])):
        with pytest.raises((msgspec.MsgspecError, Refusal)):
            greetings.answer("stranger", content)
    for number in range(5_000):
        greetings.answer(f"stranger-{number}", hello("run"))
    assert len(greetings._greeted) <= 4_096
