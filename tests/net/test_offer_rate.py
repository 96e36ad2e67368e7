"""How often members offer, so that all together offer what links carry: by what is heard, not by anybody's word."""

from __future__ import annotations

import logging
import random

import pytest
from msgspec.structs import replace

from swarm.errors import Refusal
from swarm.net.config import NetworkSettings
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.membership.member import Member, Profile
from swarm.net.records.envelope import read_record
from swarm.net.records.identity import Identity
from swarm.net.records.offers import open_offers, seal_offers
from swarm.net.trust.accounts import SafetySettings
from swarm.net.trust.exchange import Exchange
from swarm.net.trust.record_admission import OFFER_SHARES, RecordAdmission
from swarm.net.trust.sharing import MAX_HEARD, OFFERS_PER_S, Appetite, OfferRate
from swarm.reasons import Reason
from swarm.types import OfferedGroups

from .records import make_group, sealed_manifest
from .test_offers import ALICE, RUN, Pair, group_of, offer_of, read

ROUND_S = 30.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Swarm:
    """Members with a group each in 30 s, all of whom hear what any of them offers."""

    def __init__(self, num_members: int) -> None:
        self._clock = Clock()
        self._rate = OfferRate(clock=self._clock)
        self._members = [Appetite() for _ in range(num_members)]
        self._random = random.Random(0)
        self.strangers = 0

    def rounds(self, count: int, per_s: float = 0.0, told: float = 1.0, fresh: bool = False, silent: int = 0) -> float:
        """Offers per second of members, in the last of these rounds, with a hostile author, or one after another.

        The first `silent` members do not know the rate.
        """
        offered, every, common = 0, max(1, len(self._members) // 20), self._rate.per_s()
        for _ in range(count):
            offered = 0
            for place, appetite in enumerate(self._members):
                self._clock.now += ROUND_S / len(self._members)
                common = self._rate.per_s() if place % every == 0 else common
                rate = appetite.factor * common if place >= silent else 1.0
                if self._random.random() < rate * ROUND_S:
                    offered += 1
                    self._rate.heard(f"member {place}", 1, min(rate, 1 / ROUND_S) if place >= silent else 0.0)
                if self._random.random() < per_s * ROUND_S / len(self._members):
                    self.strangers += fresh
                    self._rate.heard(f"stranger {self.strangers}", 1, told)
        return offered / ROUND_S

    def hungry(self) -> None:
        for appetite in self._members:
            appetite.update(0, 1)


@pytest.mark.parametrize("num_members", [2, 100, 1_000, 3_000])
def test_members_offer_all_they_make_until_links_are_full_and_no_more_then(num_members: int) -> None:
    swarm = Swarm(num_members)
    expected = min(num_members / ROUND_S, OFFERS_PER_S)
    assert swarm.rounds(6) == pytest.approx(expected, rel=0.15, abs=0.01)


def test_a_swarm_that_shrinks_offers_all_again() -> None:
    swarm = Swarm(3_000)
    swarm.rounds(4)
    swarm._members = swarm._members[:10]
    assert swarm.rounds(6) == pytest.approx(10 / ROUND_S)


@pytest.mark.parametrize("told", [1e-6, 1e6])
def test_one_that_floods_and_lies_changes_little(told: float) -> None:
    assert Swarm(3_000).rounds(6, per_s=50, told=told) == pytest.approx(OFFERS_PER_S, rel=0.15)


@pytest.mark.parametrize("told", [1e-6, 1e6])
def test_fresh_names_take_their_part_of_what_links_carry_and_not_more(told: float) -> None:
    assert Swarm(3_000).rounds(6, per_s=10, told=told, fresh=True) == pytest.approx(OFFERS_PER_S - 10, rel=0.2)


def test_words_of_a_majority_of_fresh_names_do_not_make_members_flood() -> None:
    swarm = Swarm(3_000)
    before = swarm.rounds(4)
    assert swarm.rounds(6, per_s=40, told=1e6, fresh=True) < 2 * before, "they could offer three times as much"


def test_members_silenced_by_fresh_names_offer_again_when_they_lack_groups() -> None:
    swarm = Swarm(100)
    assert swarm.rounds(20, per_s=40, told=1e-6, fresh=True) < 0.3, "that flood is as large as what links carry"
    for _ in range(20):
        swarm.hungry()
    assert swarm.rounds(1, per_s=40, told=1e-6, fresh=True) == pytest.approx(100 / ROUND_S)


@pytest.mark.parametrize("told", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("num_strangers", [6, 100])
def test_strangers_that_give_nothing_take_nothing_of_the_rate_of_known_authors(told: float, num_strangers: int) -> None:
    """Six lowered it from 32 to 1.2 a second, so that a member with one in 0.2 s offered a quarter of its groups."""
    clock = Clock()
    rate = OfferRate(clock=clock)
    rate.trust({"known"}, 0.001)
    for _ in range(60):
        clock.now += 1
        rate.heard("known", 4, 4.0)
        for k in range(num_strangers):
            rate.heard(f"stranger {k}", 15, told)
    assert rate.per_s() >= 0.7 * OFFERS_PER_S
    rate.trust((), 0.0)
    assert rate.per_s() == OFFERS_PER_S, "nobody is left"


def test_members_that_nobody_knows_keep_their_rate_beside_a_flood_of_what_is_not_usable() -> None:
    swarm = Swarm(3_000)
    swarm._rate.trust((), OFFERS_PER_S / (OFFERS_PER_S + 20))
    assert swarm.rounds(6, per_s=20, told=1e6, fresh=True) == pytest.approx(OFFERS_PER_S, rel=0.15)


def test_what_a_node_finds_of_newcomers_groups_decides_how_far_their_offers_count() -> None:
    author = Author(per_s=1.0)
    rate, exchange = author.transport._offer_rate, author.exchange
    exchange.book.report("member", "used")
    for _ in range(60):
        author.clock.now += 1
        exchange.judge()
        for name in ("member", "stranger"):
            rate.heard(name, 1, 1.0)
    assert rate.num_members() == pytest.approx(2.0, rel=0.1), "strangers are believed until they are tried"
    for k in range(40):
        rate.asked(f"stranger {k}", gave=False)
        rate.asked("member", gave=False)
        exchange.report(f"stranger {k}", Reason.COPIED)  # not chosen: no flood of these says anything
    author.clock.now += 1
    exchange.judge()
    assert rate.num_members() == pytest.approx(1.0, rel=0.1)
    for _ in range(60):
        rate.asked("newcomer", gave=True)
        exchange.report("newcomer", "informative", verify_s=0.01)
    author.clock.now += 1
    exchange.judge()
    assert rate.num_members() == pytest.approx(2.0, rel=0.2)
    for k in range(60):
        exchange.report(f"newcomer {k}", Reason.COPIED, verify_s=0.01)
    author.clock.now += 1
    exchange.judge()
    assert rate.num_members() == pytest.approx(1.0, rel=0.2), "groups that teach nothing count as little"


def test_older_members_that_know_no_rate_take_part() -> None:
    total = Swarm(2_000).rounds(8, silent=200)
    assert total == pytest.approx(OFFERS_PER_S, rel=0.2)


def test_appetite_grows_while_groups_are_missing_and_goes_afterwards() -> None:
    appetite = Appetite()
    for _ in range(100):
        appetite.update(3, 8)
    assert 1e6 < appetite.factor < 1e12
    for _ in range(300):
        appetite.update(4, 8)
    assert appetite.factor == 1.0


def test_memory_is_bounded_and_a_burst_is_measured_over_its_own_time() -> None:
    clock = Clock()
    rate = OfferRate(clock=clock)
    for k in range(3 * MAX_HEARD):
        clock.now += 0.001
        rate.heard(f"author {k % 3_000}", 1, 1 / ROUND_S)
    assert len(rate._heard) == MAX_HEARD
    assert rate.per_s() == pytest.approx(OFFERS_PER_S / (1_000 * ROUND_S), rel=0.05), "1 000 a second at 1 / 30 each"


class Author:
    """An exchange whose transport says how much members may offer."""

    def __init__(self, per_s: float, others: int = 1) -> None:
        hub, self.clock = MemoryHub(), Clock()
        self.transport = MemoryTransport(hub, ALICE.peer_id, sealed_manifest(ALICE), clock=self.clock)
        self.far = [MemoryTransport(hub, Identity.generate().peer_id) for _ in range(others)]
        for transport in (self.transport, *self.far):
            transport.start()
        self.published: list[bytes] = []
        self.transport.publish = self.published.append  # type: ignore[method-assign]
        status = self.transport.status
        self.transport.status = lambda: replace(status(), offers_per_s=per_s)  # type: ignore[method-assign]
        self.exchange = Exchange(self.transport, ALICE, clock=self.clock)
        self.exchange._demand.heard(64)

    def share(self, rounds: int, made: int) -> int:
        count = 0
        for number in range(rounds):
            self.clock.now += ROUND_S
            groups = [make_group(sequence=number * made + k) for k in range(made)]
            count += sum(group is not None for group in self.exchange.share_all(groups))
        return count


def test_an_author_keeps_to_the_rate_and_says_it() -> None:
    author = Author(per_s=0.02)
    assert author.share(rounds=50, made=4) == pytest.approx(0.02 * 50 * ROUND_S, abs=15)
    told = {open_offers(read(record), author.exchange.status().run_id or "").per_s for record in author.published}
    assert told == {0.02}


def test_an_author_below_the_rate_offers_all_and_says_what_it_makes() -> None:
    author = Author(per_s=5.0)
    assert author.share(rounds=3, made=4) == 12
    told = open_offers(read(author.published[-1]), author.exchange.status().run_id or "")
    assert told.per_s == pytest.approx(4 / ROUND_S)


def test_an_author_that_lacks_groups_offers_more() -> None:
    author = Author(per_s=0.001)
    for _ in range(8):
        author.exchange.took(1, 4)
    assert author.share(rounds=3, made=4) == 12


def test_who_enters_a_large_swarm_offers_from_the_start() -> None:
    author = Author(per_s=5.0, others=8)
    author.exchange._demand.__init__()  # type: ignore[misc]
    author.share(rounds=1, made=2)
    assert [type(open_offers(read(record), author.exchange.status().run_id or "")) for record in author.published] == [
        OfferedGroups
    ]


@pytest.mark.parametrize(
    ("num_pulling", "num_described", "offers"), [(6, 6, True), (5, 7, True), (4, 7, False), (0, 0, False)]
)
def test_most_of_the_members_that_are_known_must_know_offers(
    num_pulling: int, num_described: int, offers: bool
) -> None:
    author = Author(per_s=5.0, others=20)
    status = author.transport.status
    author.transport.status = lambda: replace(  # type: ignore[method-assign]
        status(), num_pulling=num_pulling, num_described=num_described
    )
    author.share(rounds=1, made=1)
    (record,) = author.published
    assert (read_record(record, 10_000).body.kind == "offers") is offers


def test_a_group_that_cannot_be_offered_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    author = Author(per_s=5.0)
    large = random.Random(0).randbytes(400_000).hex()
    with caplog.at_level(logging.WARNING):
        for number in range(2):
            group = make_group(sequence=number)
            completion = replace(group.completions[0], text=large[number : number + 600_000])
            author.exchange._limits = replace(author.exchange._limits, max_completion_chars=10**6)
            (shared,) = author.exchange.share_all([replace(group, completions=(completion,) * 2)])
            assert shared is not None
    assert len(author.published) == 2 and len(author.published[0]) > 2**18, "sent"
    assert caplog.text.count("only groups of up to 256 KiB can be offered") == 1


def test_fetching_much_changes_no_rate() -> None:
    pair = Pair()
    pair.offer(5)
    before = pair.author.status().offers_per_s
    for offered in pair.told() * 10:
        pair.receiver.pull(offered, 5.0)
    assert pair.author.status().offers_per_s == before == OFFERS_PER_S
    assert pair.sender._sharing.appetite.factor == 1.0


def test_offers_of_strangers_have_a_budget_of_their_own() -> None:
    clock = Clock()
    admission = RecordAdmission(NetworkSettings(inbox_records=100), clock)
    admission.proven = frozenset()
    offers = [admission.admits_gossip("mallory", f"name-{k}", {"bob"}, 500, are_offers=True) for k in range(1_000)]
    assert sum(offers) == OFFER_SHARES * 100
    assert sum(admission.admits_gossip("mallory", f"name-{k}", {"bob"}, 500) for k in range(1_000)) == 100
    assert admission.admits_gossip("mallory", "bob", {"bob"}, 500, are_offers=True)
    clock.now += 60
    assert (
        sum(admission.admits_gossip("mallory", f"name-{k}", {"bob"}, 500, are_offers=True) for k in range(5_000)) == 400
    )


def test_what_gossip_carried_counts_even_beyond_the_budget_and_what_repair_brings_does_not() -> None:
    settings = NetworkSettings(inbox_records=10, safety=SafetySettings(newcomer_groups_per_min=1e-3))
    member = Member(settings, Identity.generate(), Profile(), sealed_manifest(ALICE))
    run_id = member.run.manifest.run_id if member.run.manifest else ""
    rate = member.records.offer_rate
    record = seal_offers(ALICE, run_id, [offer_of(group_of())], 0.5)
    member.records.receive_repaired(Identity.generate().peer_id, record, 3.0)
    assert len(rate._heard) == 0
    for _ in range(OFFER_SHARES * 10 + 5):
        author = Identity.generate()
        group = group_of(0, author, run_id)
        member.records.receive_gossip("helper", seal_offers(author, run_id, [offer_of(group)], 0.5))
    assert member.counters.snapshot()["drop_over_budget"] == 5
    assert [each.per_s for each in rate._heard].count(0.0) == 5 and len(rate._heard) == OFFER_SHARES * 10 + 5
    assert member.status().offers_per_s < OFFERS_PER_S


@pytest.mark.parametrize("per_s", [-1.0, 1e9, float("nan"), float("inf")])
def test_rates_without_sense_are_refused(per_s: float) -> None:
    with pytest.raises(Refusal) as refused:
        open_offers(read(seal_offers(ALICE, RUN, [offer_of(group_of())], per_s)), RUN)
    assert (refused.value.reason, refused.value.peer_id) == (Reason.LIMITS, ALICE.peer_id)
