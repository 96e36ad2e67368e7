"""Which of the addresses that strangers tell are dialled, and how often."""

from __future__ import annotations

import pytest

from swarm.net.addresses.dial import (
    DIALS_AT_ONCE,
    DIALS_PER_S,
    FREE_FAILURES,
    HOST_PAUSE_S,
    MAX_ADDRESSES,
    MAX_OF_ONE_HOST,
    ReportedAddresses,
    is_private_run,
    may_be_public,
    with_ips,
)

VICTIM = "/ip4/8.8.8.8/tcp/"
RELAY = "/p2p/12D3KooWRelay/p2p-circuit"


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/8.8.8.8/tcp/1",
        "/ip6/2600::1/udp/1/quic-v1",
        "/dns4/example.org/tcp/1",
        f"/ip4/8.8.8.8/tcp/1{RELAY}",
    ],
)
def test_what_may_be_outside(address: str) -> None:
    assert may_be_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/127.0.0.1/tcp/22",
        "/ip4/10.0.0.1/tcp/80",
        "/ip4/172.16.0.1/tcp/80",
        "/ip4/192.168.1.1/tcp/80",
        "/ip4/169.254.169.254/tcp/80",
        "/ip4/100.64.0.1/tcp/80",
        "/ip4/224.0.0.1/udp/1/quic-v1",
        "/ip4/0.0.0.0/tcp/1",
        "/ip4/255.255.255.255/tcp/1",
        "/ip6/::1/tcp/1",
        "/ip6/fe80::1/tcp/1",
        "/ip6/fd00::1/tcp/1",
        "/ip6/ff02::1/udp/1/quic-v1",
        "/ip6/::ffff:127.0.0.1/tcp/1",
        "/ip6/64:ff9b::7f00:1/tcp/1",
        "/ip6/2002:7f00:1::/tcp/1",
        f"/ip4/192.168.1.1/tcp/80{RELAY}",
        "/dnsaddr/example.org",
        "/unix/run/docker.sock",
        "/ip4/999.1.1.1/tcp/1",
        "/ip4",
        "/",
        "",
    ],
)
def test_what_is_not(address: str) -> None:
    assert not may_be_public(address)


def test_a_name_leads_to_no_address_inside() -> None:
    ips = ["127.0.0.1", "10.0.0.1", "8.8.8.8", "2600::1", "::1", "fe80::1%eth0", "nonsense"]
    assert with_ips("/dns4/rebound.example/tcp/80", ips) == ["/ip4/8.8.8.8/tcp/80"]
    assert with_ips("/dns/rebound.example/tcp/80", ips) == ["/ip4/8.8.8.8/tcp/80", "/ip6/2600::1/tcp/80"]
    assert with_ips("/dns6/rebound.example/tcp/80", ["127.0.0.1", "::1"]) == []


def test_a_record_names_few_addresses_and_fewer_of_one_host() -> None:
    told = ReportedAddresses()
    assert len(told.choose([f"{VICTIM}{port}" for port in range(1, 17)], 0.0)) == MAX_OF_ONE_HOST
    many = [f"/ip4/8.8.{i}.8/tcp/1" for i in range(16)]
    assert told.choose(many, 0.0) == tuple(many[:MAX_ADDRESSES])
    # What leads nowhere takes no place of what may lead somewhere.
    assert told.choose([f"/ip4/10.0.0.{i}/tcp/1" for i in range(16)] + many[:1], 0.0) == (many[0],)


def test_a_host_where_dials_fail_is_left_alone_ever_longer() -> None:
    told, address = ReportedAddresses(), f"{VICTIM}1"
    num_dials, now = 0, 0.0
    while now < 3_600:
        if told.choose([address], now):
            num_dials += 1
            told.failed([address], now)
        now += 1.0
    assert num_dials < FREE_FAILURES + 16, "whichever ports and peers strangers invent"
    told.succeeded([address])
    assert told.choose([address], now) == (address,)
    assert HOST_PAUSE_S > 1


def test_peers_that_strangers_tell_of_are_dialled_at_a_rate_of_all_and_of_the_teller() -> None:
    told = ReportedAddresses()
    dials = [told.may_dial("liar", now / 10) for now in range(600)]
    assert sum(dials) <= DIALS_AT_ONCE / 4 + 60 * DIALS_PER_S / 4 + 1
    assert told.may_dial("honest", 60.0)
    told = ReportedAddresses()
    dials = [told.may_dial(f"liar-{now}", now / 10) for now in range(600)]
    assert sum(dials) <= DIALS_AT_ONCE + 60 * DIALS_PER_S + 1


LOOPBACK, ANYWHERE = "/ip4/127.0.0.1/tcp/1", "/ip4/0.0.0.0/tcp/0"


@pytest.mark.parametrize(
    ("given", "own", "ends", "private"),
    [
        ([LOOPBACK], [LOOPBACK], [], True),
        ([LOOPBACK], ["/ip4/8.8.8.8/tcp/1"], ["/ip4/8.8.4.4/tcp/1"], True),
        (["/ip4/8.8.8.8/tcp/1"], ["/ip4/10.0.0.1/tcp/1"], [], False),
        (["/ip4/10.0.0.1/tcp/1", "/ip4/8.8.8.8/tcp/1"], [], [], False),
        (["/dns4/bootstrap/tcp/1", ANYWHERE], ["/ip4/172.18.0.2/tcp/1"], ["/ip4/172.18.0.3/tcp/1"], True),
        (["/dns4/example.org/tcp/1", ANYWHERE], ["/ip4/192.168.1.2/tcp/1"], ["/ip4/8.8.8.8/tcp/1"], False),
        ([ANYWHERE], ["/ip4/8.8.8.8/tcp/1"], [], False),
        ([ANYWHERE, "/ip6/::/tcp/0"], [], [f"/ip4/8.8.8.8/tcp/1{RELAY}"], False),
        ([], [], [], True),
    ],
)
def test_whether_a_run_is_private(given: list[str], own: list[str], ends: list[str], private: bool) -> None:
    assert is_private_run(given, own, {"peer": ends}) == private
