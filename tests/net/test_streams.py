"""Who is served when more come than can be."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from swarm.net.addresses.dial import host_of
from swarm.net.records.feed import FEED_PROTOCOL
from swarm.net.records.large import LARGE_PROTOCOL
from swarm.net.records.repair import HAVE_PROTOCOL
from swarm.net.services.streams import (
    ADDRESS_FACTOR,
    FAIR_LEAD,
    MAX_FEEDS,
    MAX_STREAMS,
    MAX_STREAMS_PER_PEER,
    MAX_VITAL_STREAMS,
    PATIENCE_S,
    REQUESTS_AT_ONCE,
    REQUESTS_PER_S,
    VITAL,
    Stream,
    StreamAdmission,
)

HOME = "/ip4/127.0.0.1/tcp/1"


class House:
    """A `StreamAdmission`, a clock, and who was hung up on."""

    def __init__(self, proven: Collection[str] = ()) -> None:
        self.now = 1_000.0
        self.hung_up: list[str] = []
        self.blamed: list[tuple[str, str]] = []
        self.admission = StreamAdmission(
            lambda peer, reason: self.blamed.append((peer, reason)), lambda peer: peer in proven, lambda: self.now
        )

    def enter(self, peer: str, protocol: str = HAVE_PROTOCOL, address: str = HOME) -> Stream | None:
        return self.admission.admit(peer, address, protocol, lambda: self.hung_up.append(peer))

    def served(self, peer: str, protocol: str = HAVE_PROTOCOL, address: str = HOME) -> bool:
        stream = self.enter(peer, protocol, address)
        return stream is not None and stream.served


@pytest.mark.parametrize("protocol", sorted(VITAL))
def test_what_keeps_others_in_the_run_has_places_of_its_own(protocol: str) -> None:
    house = House()
    for i in range(2 * MAX_STREAMS):
        house.enter(f"stranger-{i % 8}")
    assert house.served("honest", protocol) and house.hung_up == []


def test_one_peer_has_so_many_places_and_is_told_when_it_wants_more() -> None:
    house = House()
    assert [house.served("greedy") for _ in range(MAX_STREAMS_PER_PEER + 1)] == [True] * MAX_STREAMS_PER_PEER + [False]
    assert house.served("other") and house.hung_up == []


@pytest.mark.parametrize("protocol", [HAVE_PROTOCOL, *sorted(VITAL)])
def test_identities_that_hold_all_places_make_room_for_one_that_holds_none(protocol: str) -> None:
    house = House()
    for peer in ("one", "two", "three", "four"):
        for _ in range(60):
            house.enter(peer, protocol)
    house.hung_up.clear()
    assert house.served("honest", protocol) and len(house.hung_up) == 1


def test_peers_behind_one_address_count_as_one_first() -> None:
    house = House()
    for i in range(MAX_STREAMS):
        stream = house.enter(f"sybil-{i}", address="/ip4/203.0.113.5/tcp/9")
        assert stream is not None
        stream.own_turn()
    assert house.served("honest", address="/ip4/198.51.100.1/tcp/4001")
    assert not house.served("sybil", address="/ip4/203.0.113.5/tcp/10"), "but none of them makes room for another"


def test_who_keeps_this_node_waiting_makes_room() -> None:
    house = House()
    streams = [house.enter(f"peer-{i}") for i in range(MAX_STREAMS)]
    assert not house.served("honest"), "all have come just now"
    for stream in streams[1:]:
        assert stream is not None
        stream.own_turn()
    house.now += PATIENCE_S + 0.1
    assert house.served("honest") and house.hung_up == ["peer-0"]
    assert not house.served("another"), "it is this node's turn with all the others"


def test_more_bytes_have_more_time() -> None:
    house = House()
    streams = [house.enter(f"peer-{i}") for i in range(MAX_STREAMS)]
    for stream in streams:
        assert stream is not None
        stream.peer_turn(4)
        stream.peer_turn(2**20)
    house.now += PATIENCE_S + 3.0
    assert not house.served("honest")
    house.now += 2.0
    assert house.served("honest")


def test_who_leaves_all_its_streams_idle_and_opens_more_is_blamed() -> None:
    house = House()
    streams = [house.enter("idle") for _ in range(MAX_STREAMS_PER_PEER)]
    house.enter("idle")
    assert house.blamed == [], "all have come just now"
    house.now += PATIENCE_S + 0.1
    for _ in range(5):
        house.enter("idle")
    assert house.blamed == [("idle", "flood")]
    assert streams[0] is not None
    streams[0].own_turn()
    house.now += 2.0
    house.enter("idle")
    assert house.blamed == [("idle", "flood")], "it waits for this node"


def test_useful_peers_do_not_pay_for_others_at_their_address() -> None:
    house = House(proven={"member"})
    for k in range(int(2 * ADDRESS_FACTOR * REQUESTS_AT_ONCE)):
        stream = house.enter(f"sybil-{k}")
        if stream is not None:
            house.admission.release(stream)
    assert house.served("member", LARGE_PROTOCOL) and not house.served("newcomer", LARGE_PROTOCOL)


def test_those_who_leave_give_their_places_back() -> None:
    house = House()
    for _ in range(3 * MAX_STREAMS):
        stream = house.enter("peer")
        assert stream is not None and stream.served
        house.admission.release(stream)


def test_beyond_all_refusals_they_are_hung_up_on_without_a_word() -> None:
    house = House()
    answers = [house.enter("greedy") for _ in range(MAX_STREAMS_PER_PEER + MAX_STREAMS + 5)]
    assert [answer is None for answer in answers] == [False] * (MAX_STREAMS_PER_PEER + MAX_STREAMS) + [True] * 5


def test_who_asks_too_often_is_told_to_ask_later_and_blamed_once_a_second() -> None:
    house = House()

    def ask(peer: str, address: str = HOME) -> bool:
        stream = house.enter(peer, address=address)
        assert stream is not None
        house.admission.release(stream)
        return stream.served

    assert sum(ask("flood") for _ in range(2_000)) == REQUESTS_AT_ONCE
    assert ask("honest") and house.blamed == [("flood", "flood")]
    house.now += 2.0
    assert sum(ask("flood") for _ in range(1_000)) == 2 * REQUESTS_PER_S
    assert house.blamed == [("flood", "flood")] * 2
    # Many identities behind one address are more than one peer, but not without end.
    most = ADDRESS_FACTOR * REQUESTS_AT_ONCE
    assert sum(ask(f"sybil-{i}", "/ip4/203.0.113.5/tcp/9") for i in range(int(2 * most))) == most
    assert ask("honest", "/ip4/198.51.100.1/tcp/9")


def test_a_fair_crowd_is_not_thrown_out() -> None:
    house = House()
    streams = [house.enter(f"peer-{i % (MAX_STREAMS // FAIR_LEAD)}") for i in range(MAX_STREAMS)]
    for stream in streams:
        assert stream is not None
        stream.own_turn()
    assert not house.served("honest") and house.hung_up == []
    assert MAX_VITAL_STREAMS >= 2 * MAX_STREAMS_PER_PEER


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("/ip4/10.0.0.9/tcp/4001", "10.0.0.9"),
        ("/ip6/2001:db8:1:2:3:4:5:6/udp/1/quic-v1", "2001:db8:1:2::/64"),
        ("/ip6/::ffff:10.0.0.9/tcp/4001", "10.0.0.9"),
        ("/ip6/2001:db8:1:2::%a/tcp/4001", "2001:db8:1:2::/64"),
        ("/dns4/example.org/tcp/1", "example.org"),
        ("/dns4/Example.ORG./tcp/1", "example.org"),
        ("", ""),
    ],
)
def test_the_host_of_an_address(address: str, host: str) -> None:
    assert host_of(address) == host


def test_followers_have_places_of_their_own_one_for_each_peer() -> None:
    house = House()
    for number in range(MAX_STREAMS):
        house.enter(f"stranger-{number}", address=f"/ip4/10.0.0.{number}/tcp/1")
    assert house.served("follower", FEED_PROTOCOL) and house.hung_up == []
    assert house.served("follower", FEED_PROTOCOL) and house.hung_up == ["follower"], "it begins again"


def test_who_was_of_use_finds_a_place_among_followers() -> None:
    house = House()
    house.admission = StreamAdmission(is_proven=lambda peer: peer.startswith("useful"), clock=lambda: house.now)
    for number in range(MAX_FEEDS):
        stream = house.enter(f"stranger-{number}", FEED_PROTOCOL, f"/ip4/10.0.0.{number}/tcp/1")
        assert stream is not None and stream.served
        stream.own_turn()
    assert not house.served("another", FEED_PROTOCOL)
    for number in range(MAX_FEEDS):
        assert house.served(f"useful-{number}", FEED_PROTOCOL, f"/ip4/10.0.1.{number}/tcp/1")
    assert len(house.hung_up) == MAX_FEEDS
    assert not house.served("another", FEED_PROTOCOL)


def test_many_followers_at_one_address_make_room_for_another() -> None:
    house = House()
    for number in range(MAX_FEEDS):
        assert house.served(f"sibyl-{number}", FEED_PROTOCOL)
    assert house.served("honest", FEED_PROTOCOL, "/ip4/10.0.0.1/tcp/1") and len(house.hung_up) == 1


def test_requests_for_records_by_proven_peers_have_places_of_their_own() -> None:
    house = House(proven={"member"})
    for peer in ("one", "two", "three", "four"):
        for _ in range(60):
            house.enter(peer, LARGE_PROTOCOL)
    house.hung_up.clear()
    assert [house.served("member", LARGE_PROTOCOL) for _ in range(MAX_STREAMS_PER_PEER)] == [
        True
    ] * MAX_STREAMS_PER_PEER
    assert house.hung_up == [], "nobody had to make room"
    stream = house.enter("member", HAVE_PROTOCOL)
    assert stream is not None and stream.served, "for other requests it is one of many"


def test_one_proven_peer_does_not_hold_the_places_of_all() -> None:
    house = House(proven={f"member-{k}" for k in range(9)})
    for k in range(2):
        for _ in range(2 * MAX_STREAMS_PER_PEER):
            house.enter(f"member-{k}", LARGE_PROTOCOL)
    house.hung_up.clear()
    assert house.served("member-8", LARGE_PROTOCOL) and len(house.hung_up) == 1
