"""Groups on offer: small claims, signed, that cost their author when they are false or withheld."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from swarm.errors import NoConnection, Refusal
from swarm.net import bandwidth as bandwidth_module
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.membership import traffic as traffic_module, upkeep as upkeep_module
from swarm.net.membership.upkeep import PULLS_AT_ONCE, PULLS_OF_NEWCOMERS, PULLS_OF_ONE
from swarm.net.records.envelope import SignedRecord, decompress, read_record, seal_payload
from swarm.net.records.identity import Identity
from swarm.net.records.offers import (
    MAX_OFFER_BYTES,
    MAX_OFFERS,
    check_offer,
    describe,
    in_records,
    open_offers,
    pulling_is_cheaper,
    seal_offers,
)
from swarm.net.records.repair import answer_have
from swarm.net.records.stores import Held, RecordStore, record_id
from swarm.net.records.wire import check_seal, make_run_id, seal
from swarm.net.trust.accounts import SafetySettings
from swarm.net.trust.exchange import Exchange
from swarm.net.trust.sharing import MIN_HEARD, Demand
from swarm.reasons import Reason
from swarm.types import Offer, OfferedGroup, OfferedGroups, RolloutGroup, VerifiedGroup
from swarm.types.commitments import commitment

from .records import make_group, opened, sealed_manifest
from .test_upkeep import Swarm

ALICE = Identity.generate()
RUN = make_run_id("demo", ALICE.peer_id)
NOW = 1_000.0
BACKFILL_S = 120.0


def group_of(sequence: int = 0, identity: Identity = ALICE, run_id: str = RUN) -> VerifiedGroup:
    group = make_group(run_id, identity.peer_id, sequence)
    return opened(seal(identity, run_id, "group", group), run_id, now=NOW)


def offer_of(group: VerifiedGroup, **changed: object) -> Offer:
    offer = describe(group, 60.0)
    assert offer is not None
    return replace(offer, **changed)


def read(record: bytes) -> SignedRecord:
    return check_seal(read_record(record, 100_000), RUN)


def test_an_offer_is_small_and_says_what_a_mix_asks_for() -> None:
    offer = offer_of(group_of())
    assert offer.rewards == (1.0, 0.0) and offer.task == "gcd"
    largest = replace(offer, task="t" * 64, num_bytes=2**18, num_completions=256, life_s=3_600)
    assert len(msgspec.msgpack.encode(largest)) <= MAX_OFFER_BYTES
    told = open_offers(read(seal_offers(ALICE, RUN, [largest] * MAX_OFFERS)), RUN)
    assert told == OfferedGroups(ALICE.peer_id, (largest,) * MAX_OFFERS)


def test_a_group_is_what_was_offered() -> None:
    group = group_of()
    check_offer(OfferedGroup(ALICE.peer_id, offer_of(group)), group)


@pytest.mark.parametrize(
    "changed",
    [
        {"content_id": bytes(16)},
        {"task": "other"},
        {"num_completions": 3},
        {"mean_reward": 0.6},
        {"reward_std": 0.1},
        {"policy": bytes(8)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_false_offer_is_charged_to_its_author(changed: dict[str, object]) -> None:
    group = group_of()
    with pytest.raises(Refusal) as refused:
        check_offer(OfferedGroup(ALICE.peer_id, offer_of(group, **changed)), group)
    assert (refused.value.reason, refused.value.peer_id) == (Reason.FALSE_OFFER, ALICE.peer_id)


def test_another_s_group_on_offer_is_charged_to_who_offered_it() -> None:
    thief, group = Identity.generate(), group_of()
    with pytest.raises(Refusal) as refused:
        check_offer(OfferedGroup(thief.peer_id, offer_of(group)), group)
    assert refused.value.peer_id == thief.peer_id


def _sealed(content: object) -> bytes:
    return seal_payload(ALICE, RUN, "offers", msgspec.msgpack.encode(content))


OFFER = offer_of(group_of())
HOSTILE: dict[str, tuple[Callable[[], bytes], Reason]] = {
    "too many": (lambda: seal_offers(ALICE, RUN, [OFFER] * (MAX_OFFERS + 1)), Reason.LIMITS),
    "none": (lambda: seal_offers(ALICE, RUN, []), Reason.LIMITS),
    "a bomb": (lambda: seal_payload(ALICE, RUN, "offers", bytes(10**7)), Reason.OVERSIZED),
    "junk": (lambda: _sealed("junk"), Reason.MALFORMED),
    "a huge record": (lambda: seal_offers(ALICE, RUN, [replace(OFFER, num_bytes=2**18 + 1)]), Reason.LIMITS),
    "no task": (lambda: seal_offers(ALICE, RUN, [replace(OFFER, task="")]), Reason.LIMITS),
    "a long name": (lambda: seal_offers(ALICE, RUN, [replace(OFFER, task="\N{GRINNING FACE}" * 64)]), Reason.LIMITS),
    "not a number": (lambda: seal_offers(ALICE, RUN, [replace(OFFER, reward_std=float("nan"))]), Reason.LIMITS),
    "for ever": (lambda: seal_offers(ALICE, RUN, [replace(OFFER, life_s=10**6)]), Reason.LIMITS),
    "another peer's": (
        lambda: _sealed({"run_id": RUN, "peer_id": Identity.generate().peer_id, "offers": [OFFER]}),
        Reason.WRONG_PEER,
    ),
    "another run's": (
        lambda: _sealed({"run_id": "other", "peer_id": ALICE.peer_id, "offers": [OFFER]}),
        Reason.WRONG_RUN,
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_offers_are_refused_and_charged(what: str) -> None:
    make, reason = HOSTILE[what]
    with pytest.raises(Refusal) as refused:
        open_offers(read(make()), RUN)
    assert (refused.value.reason, refused.value.peer_id) == (reason, ALICE.peer_id)


def test_offers_may_grow() -> None:
    grown = [*msgspec.to_builtins(OFFER, builtin_types=(bytes,)), "later"]
    told = open_offers(read(_sealed({"run_id": RUN, "peer_id": ALICE.peer_id, "offers": [grown], "later": 1})), RUN)
    assert told.offers == (OFFER,)


def test_what_is_too_large_for_one_piece_is_not_offered() -> None:
    group = group_of()
    assert describe(replace(group, record=bytes(2**18)), 60.0) is not None
    assert describe(replace(group, record=bytes(2**18 + 1)), 60.0) is None


@pytest.mark.parametrize(
    ("num_bytes", "num_members", "wanted", "pull"),
    [
        (3_000, 1, 0.9, False),  # two nodes that use nearly all
        (3_000, 1, 0.4, True),
        (400, 1, 0.5, False),  # small groups
        (3_000, 3, 0.5, True),
        (16_000, 1_000, 0.01, True),
        (100, 1_000, 0.9, False),
        (3_000, 8, 0.8, False),  # most members use it, and a group that is sent comes once
        (1_000, 8, 0.8, True),  # small enough to be in each feed
    ],
)
def test_small_swarms_send_and_large_ones_offer(num_bytes: int, num_members: int, wanted: float, pull: bool) -> None:
    assert pulling_is_cheaper(num_bytes, num_members, wanted) is pull


def test_demand_is_what_is_used_of_what_is_heard_of_lately() -> None:
    demand = Demand()
    demand.heard(MIN_HEARD - 1)
    assert demand.fraction is None
    demand.heard(1)
    demand.used(16)
    assert demand.fraction == pytest.approx(0.25, abs=0.03)
    for _ in range(100):
        demand.heard(64)
        demand.used(48)
    assert demand.fraction == pytest.approx(0.75, abs=0.08)


class Author(MemoryTransport):
    """May keep what it offered to itself."""

    withholds = False

    def _give(self, name: bytes) -> bytes | None:
        return None if self.withholds else super()._give(name)


class Pair:
    """An author that offers, and a receiver."""

    def __init__(self, clock: Callable[[], float] = lambda: NOW) -> None:
        hub = MemoryHub()
        self.bob = Identity.generate()
        self.author = Author(hub, ALICE.peer_id, sealed_manifest(ALICE), backfill_s=BACKFILL_S, clock=clock)
        self.far = MemoryTransport(hub, self.bob.peer_id, clock=clock)
        for transport in (self.author, self.far):
            transport.start()
        self.sender = Exchange(self.author, ALICE, clock=lambda: NOW)
        self.receiver = Exchange(self.far, self.bob, safety=SafetySettings(), clock=lambda: NOW)
        # Its own measurement: it used none of 64 groups.
        self.sender._demand.heard(MIN_HEARD)

    def offer(self, count: int, first: int = 0) -> list[RolloutGroup]:
        return [group for k in range(count) if (group := self._shared(first + k))]

    def _shared(self, sequence: int) -> RolloutGroup | None:
        (shared,) = self.sender.share_all([make_group(sequence=sequence)])
        return shared

    def told(self) -> list[OfferedGroup]:
        assert self.receiver.receive() == ([], {})
        return self.receiver.offers()


def test_what_is_offered_arrives_when_it_is_asked_for() -> None:
    pair = Pair()
    shared = pair.sender.share_all([make_group(sequence=k) for k in range(5)])
    assert pair.author.counters()["published"] == 1, "many offers, one message"
    offered = pair.told()
    assert len(offered) == 5 and pair.receiver.receive() == ([], {}), "nobody is sent the groups"
    pair.receiver.pull(offered[2], 5.0)
    assert [each.group for each in pair.receiver.receive()[0]] == [shared[2]]
    assert pair.far.counters()["pulled"] == 1


def test_nodes_in_one_process_hold_what_they_offer_by_the_clock_that_they_share() -> None:
    """Their turns may take minutes, as with a language model: records grew old meanwhile, and nobody got them."""
    now = [NOW]
    pair = Pair(clock=lambda: now[0])
    pair.offer(2)
    early, late = pair.told()
    now[0] += BACKFILL_S - 1.0
    pair.receiver.pull(early, 5.0)
    assert pair.far.counters()["pulled"] == 1
    now[0] += 1.0
    pair.receiver.pull(late, 5.0)
    assert pair.far.counters()["withheld"] == 1


def test_without_a_measurement_or_with_those_who_know_no_offers_groups_are_sent() -> None:
    pair = Pair()
    pair.receiver.share_all([make_group(sequence=1)])
    assert len(pair.sender.receive()[0]) == 1 and pair.sender.offers() == [], "nothing is measured yet"
    status = pair.author.status
    pair.author.status = lambda: replace(status(), num_pulling=0)  # type: ignore[method-assign]
    pair.sender.share_all([make_group(sequence=2)])
    assert len(pair.receiver.receive()[0]) == 1


def test_who_withholds_what_it_offers_is_charged_and_in_the_end_not_heard() -> None:
    pair = Pair()
    pair.author.withholds = True
    pair.offer(60)
    for offered in pair.told():
        pair.receiver.pull(offered, 5.0)
    assert pair.receiver.receive() == ([], {})
    assert pair.receiver.book.stats()[ALICE.peer_id].dropped["withheld"] == 60
    assert ALICE.peer_id in pair.receiver.book.quarantined()
    pair.offer(1, first=100)
    assert pair.receiver.receive()[0] == [] and pair.receiver.offers() == []


def test_false_offers_are_charged_when_the_groups_come() -> None:
    pair = Pair()
    for k in range(9):
        sealed = group_of(k)
        pair.author.hold(sealed.record)
        pair.author.publish(seal_offers(ALICE, RUN, [offer_of(sealed, reward_std=0.25)]))
    for offered in pair.told():
        pair.receiver.pull(offered, 5.0)
    assert pair.receiver.receive() == ([], {"false_offer": 9})
    assert ALICE.peer_id in pair.receiver.book.quarantined()


@pytest.mark.parametrize("changed", [{"content_id": bytes(16)}, {}], ids=["falsely", "as its own"])
def test_a_false_offer_does_not_suppress_another_author_s_group(changed: dict[str, object]) -> None:
    """In a room: the offerer is charged, the group comes as its author's, and the author's own offer is as it was."""
    pair = Pair()
    thief, group = Identity.generate(), group_of()
    pair.author.hold(group.record)
    pair.receiver.pull(OfferedGroup(thief.peer_id, offer_of(group, **changed)), 5.0)
    groups, refused = pair.receiver.receive()
    assert ([(each.content_id, each.group) for each in groups], refused) == ([(group.content_id, group.group)], {})
    book = pair.receiver.book
    assert book.stats()[thief.peer_id].dropped == {"false_offer": 1} and not book.stats()[ALICE.peer_id].dropped


def test_a_flood_of_offers_is_limited_like_one_of_groups() -> None:
    pair = Pair()
    pair.receiver.book._settings = SafetySettings(groups_per_min=100)
    for k in range(4):
        offers = [offer_of(group_of(), record_id=bytes((k, j)) + bytes(14)) for j in range(MAX_OFFERS)]
        pair.author.publish(seal_offers(ALICE, RUN, offers))
    _, refused = pair.receiver.receive()
    assert refused == {"rate": 2} and len(pair.receiver.offers()) == 2 * MAX_OFFERS


def test_replayed_offers_of_groups_that_arrived_are_nothing() -> None:
    pair = Pair()
    pair.offer(1)
    (offered,) = pair.told()
    pair.receiver.pull(offered, 5.0)
    assert len(pair.receiver.receive()[0]) == 1
    pair.author.publish(seal_offers(ALICE, RUN, [offered.offer, offered.offer]))
    assert pair.told() == []


def test_an_older_node_is_told_of_groups_on_offer_and_a_newer_one_leaves_them() -> None:
    class OlderHeld(msgspec.Struct, array_like=True):
        record_id: bytes
        num_bytes: int
        age_s: float

    store = RecordStore(10, 10**6, 60.0, clock=iter(range(10, 99)).__next__)
    store.add(b"group", age_s=5.0, offered=True)
    answer = answer_have(store, msgspec.msgpack.encode([30.0]))
    assert msgspec.msgpack.decode(answer, type=list[OlderHeld])[0].record_id == record_id(b"group")
    assert msgspec.msgpack.decode(answer, type=list[Held])[0].offered


class Pulling(Swarm):
    """A node that chooses records on offer."""

    def pull(self, author: Identity, number: int, patience_s: float = 30.0, held: bool = True) -> bytes:
        group = group_of(number, author, self.run_id)
        if held:
            self.records[record_id(group.record)] = group.record
        self.choose(OfferedGroup(author.peer_id, offer_of(group)), patience_s)
        return group.record

    def choose(self, offered: OfferedGroup, patience_s: float = 30.0) -> None:
        self.member.records.pull(offered, patience_s)
        self.member.records.queue_pulls()

    def run(self, done: Callable[[], bool]) -> None:
        async def pulling() -> None:
            slots = [asyncio.create_task(self.upkeep.pull()) for _ in range(PULLS_AT_ONCE)]
            try:
                async with asyncio.timeout(60):
                    while not done():
                        # In a swarm somebody is always heard.
                        self.member.records.heard()
                        await asyncio.sleep(0.001)
            finally:
                for slot in slots:
                    slot.cancel()
                await asyncio.gather(*slots, return_exceptions=True)

        asyncio.run(pulling())

    def arrived(self) -> int:
        return self.member.counters.snapshot().get("pulled", 0)


@pytest.fixture
def swarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pulling:
    monkeypatch.setattr(upkeep_module, "DOWNLOAD_PAUSE_S", 0.01)
    return Pulling(tmp_path, monkeypatch)


def test_records_on_offer_come_from_their_author_even_if_it_is_not_connected(swarm: Pulling) -> None:
    author = Identity.generate()
    records = [swarm.pull(author, k) for k in range(9)]
    swarm.run(lambda: swarm.arrived() == 9)
    assert set(swarm.asked) == {author.peer_id}
    assert all(swarm.member.records.store.get(record_id(record)) for record in records), "for others to fetch"


@pytest.mark.parametrize("changed", [{"content_id": bytes(16)}, {}], ids=["falsely", "as its own"])
def test_a_false_offer_costs_its_author_and_brings_the_group_of_another(
    swarm: Pulling, changed: dict[str, object]
) -> None:
    author, thief = Identity.generate(), Identity.generate()
    swarm.member.records.trust({author.peer_id})
    group = group_of(0, author, swarm.run_id)
    swarm.records[record_id(group.record)] = group.record
    swarm.choose(OfferedGroup(thief.peer_id, offer_of(group, **changed)))
    swarm.choose(OfferedGroup(author.peer_id, offer_of(group)))
    swarm.run(lambda: swarm.arrived() == 1)
    assert [each.record for each in swarm.member.records.inbox.drain() if isinstance(each, VerifiedGroup)] == [
        group.record
    ]
    assert swarm.member.complaints.take() == [(thief.peer_id, Reason.FALSE_OFFER)]
    store = swarm.member.records.store
    assert store.get(record_id(group.record)) == group.record and set(store._entries._levels[0]) == {author.peer_id}


@pytest.mark.parametrize(
    "record",
    [bytes(500), seal(ALICE, RUN, "group", make_group(RUN, ALICE.peer_id))],
    ids=["no record", "of another run"],
)
def test_noise_on_offer_is_charged_to_who_offered_it(swarm: Pulling, record: bytes) -> None:
    thief = Identity.generate()
    swarm.records[record_id(record)] = record
    swarm.choose(OfferedGroup(thief.peer_id, offer_of(group_of(), record_id=record_id(record), num_bytes=len(record))))
    swarm.run(lambda: swarm.arrived() == 1)
    assert swarm.member.complaints.take() == [(thief.peer_id, Reason.BAD_GIFT)]


def test_another_holder_serves_what_the_author_does_not(swarm: Pulling) -> None:
    author, holder = Identity.generate(), Identity.generate().peer_id
    swarm.member.peers.in_run = frozenset({holder})
    record = swarm.pull(author, 0, held=False)
    asked = swarm.ask

    async def ask(peer_id: str, *request: object):  # type: ignore[no-untyped-def]
        swarm.records = {record_id(record): record} if peer_id == holder else {}
        async for chunk in asked(peer_id, *request):  # type: ignore[arg-type]
            yield chunk

    swarm.upkeep._ask = ask  # type: ignore[assignment]
    swarm.run(lambda: swarm.arrived() == 1)
    assert swarm.asked == [author.peer_id, holder] and swarm.member.complaints.take() == []


def test_what_nobody_gives_is_given_up_and_told_of(swarm: Pulling) -> None:
    liar, honest = Identity.generate(), Identity.generate()
    for k in range(8):
        swarm.pull(liar, k, patience_s=0.1, held=False)
    swarm.pull(honest, 0)
    complaints: list[tuple[str, Reason]] = []
    swarm.run(
        lambda: complaints.extend(swarm.member.complaints.take()) or len(complaints) == 8 and swarm.arrived() == 1
    )
    assert complaints == [(liar.peer_id, Reason.WITHHELD)] * 8


def test_a_slow_author_is_told_of_and_holds_up_nobody_for_long(swarm: Pulling) -> None:
    slow, honest = Identity.generate(), Identity.generate()
    swarm.slow = {slow.peer_id}
    for k in range(2 * PULLS_AT_ONCE):
        swarm.pull(slow, k, patience_s=0.3)
    for k in range(3):
        swarm.pull(honest, k)
    complaints: list[tuple[str, Reason]] = []
    swarm.run(
        lambda: complaints.extend(swarm.member.complaints.take()) or swarm.arrived() == 3 and len(complaints) >= 8
    )
    assert {reason for _, reason in complaints} == {Reason.SLOW_HOLDER, Reason.WITHHELD}
    assert {peer_id for peer_id, _ in complaints} == {slow.peer_id}
    assert swarm.asked.count(slow.peer_id) <= PULLS_AT_ONCE, "once slow, not asked again for a while"


def test_a_commitment_to_other_completions_is_a_false_offer() -> None:
    group = group_of()
    other = make_group(RUN, ALICE.peer_id)
    other = replace(other, completions=tuple(replace(each, text=f"not {each.text}") for each in other.completions))
    with pytest.raises(Refusal) as refused:
        check_offer(OfferedGroup(ALICE.peer_id, offer_of(group, commitment=commitment(other))), group)
    assert refused.value.reason == Reason.FALSE_OFFER


def test_offers_without_a_commitment_are_those_of_an_earlier_version() -> None:
    earlier = msgspec.to_builtins(OFFER, builtin_types=(bytes,))[:9]
    told = open_offers(read(_sealed({"run_id": RUN, "peer_id": ALICE.peer_id, "offers": [earlier]})), RUN)
    assert told.offers == (replace(OFFER, commitment=b""),)
    check_offer(OfferedGroup(ALICE.peer_id, told.offers[0]), group_of())


def test_records_of_offers_are_such_as_earlier_versions_take() -> None:
    largest = replace(OFFER, num_completions=256, commitment=bytes(4 * 257))
    for offers in ([OFFER] * 150, [largest] * 150, [OFFER, largest] * 40):
        records = list(in_records(offers))
        assert [offer for record in records for offer in record] == offers
        for record in records:
            payload = decompress(read(seal_offers(ALICE, RUN, record)), 10**6)
            assert len(record) <= MAX_OFFERS and len(payload) <= 256 + 64 * 160, "their limits"
    assert len(list(in_records([OFFER] * MAX_OFFERS))) == 1
    assert list(in_records([])) == []


def test_the_largest_offers_fit_one_record() -> None:
    largest = replace(OFFER, task="t" * 64, num_bytes=2**18, num_completions=256, commitment=bytes(4 * 257))
    told = open_offers(read(seal_offers(ALICE, RUN, [largest] * MAX_OFFERS)), RUN)
    assert told.offers == (largest,) * MAX_OFFERS


def test_authors_that_answer_nothing_leave_others_their_places(swarm: Pulling, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newcomers' silence holds four places, and their names are not asked again at once."""
    monkeypatch.setattr(upkeep_module, "ANSWER_S", 0.2)
    monkeypatch.setattr(bandwidth_module, "PATIENCE_S", 60.0)
    silent, honest, member = [Identity.generate() for _ in range(3)], Identity.generate(), Identity.generate()
    swarm.silent = {each.peer_id for each in silent}
    swarm.member.peers.connected = frozenset({*swarm.silent, honest.peer_id})
    swarm.member.records.trust({member.peer_id})
    for k in range(32):
        for each in silent:
            swarm.pull(each, k)
    for k in range(8):
        swarm.pull(member, k)
        swarm.pull(honest, k)
    swarm.run(lambda: swarm.arrived() == 16)
    assert swarm.most_from_one <= PULLS_OF_ONE
    assert swarm.member.records.offer_rate._given.fraction < 0.95, "what newcomers offer counts less from now on"
    assert len([each for each in swarm.asked if each in swarm.silent]) < 48, "not for each of their 96 offers"


def test_proven_authors_that_let_this_node_wait_leave_others_their_places(
    swarm: Pulling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that answer just in time held all eight places; from then on they have one each."""
    monkeypatch.setattr(upkeep_module, "ANSWER_S", 0.4)
    monkeypatch.setattr(upkeep_module, "PROMPT_S", 0.1)
    monkeypatch.setattr(bandwidth_module, "PATIENCE_S", 60.0)
    late, member = [Identity.generate() for _ in range(2)], Identity.generate()
    swarm.delays_s = {each.peer_id: 0.35 for each in late}
    swarm.member.peers.connected = frozenset({*swarm.delays_s, member.peer_id})
    swarm.member.records.trust({*swarm.delays_s, member.peer_id})
    for k in range(4 * PULLS_OF_ONE):
        for each in late:
            swarm.pull(each, k)
    swarm.run(lambda: swarm.arrived() >= 2 * PULLS_OF_ONE)
    swarm.asked.clear()
    records = [swarm.pull(member, k) for k in range(32)]
    store = swarm.member.records.store
    swarm.run(lambda: all(store.get(record_id(record)) for record in records))
    assert all(swarm.asked.count(each.peer_id) <= 2 for each in late), swarm.asked


def test_who_is_not_asked_because_this_node_is_busy_is_not_charged(
    swarm: Pulling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep_module, "ANSWER_S", 0.5)
    monkeypatch.setattr(traffic_module, "QUEUED_S", 0.1)
    monkeypatch.setattr(bandwidth_module, "PATIENCE_S", 60.0)
    silent, honest = Identity.generate(), Identity.generate()
    swarm.silent = {silent.peer_id}
    for k in range(PULLS_OF_NEWCOMERS):
        swarm.pull(silent, k, patience_s=0.2)
    for k in range(8):
        swarm.pull(honest, k, held=False)
    swarm.run(lambda: swarm.member.counters.snapshot().get("fetch_failures", 0) >= PULLS_OF_NEWCOMERS + 8)
    assert honest.peer_id not in swarm.asked, "there was no place for it"
    assert honest.peer_id not in dict(swarm.member.complaints.take())


def test_what_a_banned_author_offered_is_dropped_without_a_charge(swarm: Pulling) -> None:
    banned, honest = Identity.generate(), Identity.generate()
    for k in range(20):
        swarm.pull(banned, k, patience_s=0.01, held=False)
    swarm.member.peers.ban({banned.peer_id})
    swarm.pull(honest, 0)
    swarm.run(lambda: swarm.arrived() == 1 and len(swarm.member.records.pulls) == 0)
    assert swarm.asked == [honest.peer_id] and swarm.member.complaints.take() == []


def test_whoever_cannot_be_dialled_has_not_been_asked(swarm: Pulling, monkeypatch: pytest.MonkeyPatch) -> None:
    away = Identity.generate()

    async def ask(peer_id: str, *request: object):  # type: ignore[no-untyped-def]
        raise NoConnection("no such address")
        yield b""

    swarm.upkeep._ask = ask  # type: ignore[assignment]
    monkeypatch.setattr(traffic_module, "QUEUED_S", 0.1)
    swarm.pull(away, 0)
    swarm.run(lambda: swarm.member.counters.snapshot().get("fetch_failures", 0) == 1)
    assert swarm.member.complaints.take() == []
