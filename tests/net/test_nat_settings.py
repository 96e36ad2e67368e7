"""What the NAT settings make of the daemon's arguments, and what its addresses say."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from swarm.net.circuit import CircuitLimits, read_limits
from swarm.net.config import NetworkSettings
from swarm.net.identity import Identity
from swarm.net.nat import (
    MAX_CIRCUITS_TOLD,
    RENEW_AFTER_S,
    RelayWatch,
    is_public,
    nat_arguments,
    reachability,
    relay_of,
    to_tell,
    usable_relays,
)

RELAY, OTHER, ME = (Identity.generate().peer_id for _ in range(3))
RELAY_ADDRESS = f"/ip4/44.128.0.1/tcp/4001/p2p/{RELAY}"
CIRCUIT = f"{RELAY_ADDRESS}/p2p-circuit"
HOME = "/ip4/192.168.7.2/tcp/4001"
BASE = ("-natPortMap=1", "-autonat=1", "-relay=1")
RESERVED = ("-autoRelay=1", "-relayDiscovery=0", f"-trustedRelays={RELAY_ADDRESS}")
PRIVATE = "-forceReachabilityPrivate=1"


def test_a_node_without_bootstraps_only_maps_a_port_and_dials_through_relays() -> None:
    assert nat_arguments(NetworkSettings()) == (*BASE, "-relayService=0")
    assert nat_arguments(NetworkSettings(nat_port_map=False))[0] == "-natPortMap=0"


@pytest.mark.parametrize(
    ("settings", "behind_nat", "expected"),
    [
        (NetworkSettings(), False, RESERVED),
        (NetworkSettings(), True, (*RESERVED, PRIVATE)),
        (NetworkSettings(relay="always"), False, (*RESERVED, PRIVATE)),
        (NetworkSettings(relay="off"), True, ()),
        (NetworkSettings(announce=("/ip4/44.128.0.9/tcp/1",)), True, ()),
        (NetworkSettings(announce=("/ip4/44.128.0.9/tcp/1",), relay="always"), False, (*RESERVED, PRIVATE)),
    ],
)
def test_places_at_relays(settings: NetworkSettings, behind_nat: bool, expected: tuple[str, ...]) -> None:
    assert nat_arguments(settings, (RELAY_ADDRESS,), behind_nat) == (*BASE, "-relayService=0", *expected)


def test_at_most_three_relays_are_waited_for() -> None:
    arguments = nat_arguments(NetworkSettings(), ("/a", "/b", "/c", "/d"))
    assert "-trustedRelays=/a,/b,/c" in arguments


def test_a_relay_is_public_and_limited() -> None:
    settings = NetworkSettings(serve_relay=True, bootstrap=(RELAY_ADDRESS,), relay_circuit_s=90)
    assert nat_arguments(settings, (RELAY_ADDRESS,)) == (
        *BASE,
        "-forceReachabilityPublic=1",
        "-relayService=1",
        "-relayMaxReservations=256",
        "-relayMaxCircuits=64",
        f"-relayDataLimit={4 * 2**30}",
        "-relayTimeLimit=90s",
    )
    with pytest.raises(ValidationError, match="a relay must be public"):
        NetworkSettings(serve_relay=True, relay="always")


def test_relays_are_the_bootstraps_unless_named_and_one_address_each() -> None:
    two = (f"/dns4/boot.example/tcp/1/p2p/{RELAY}", f"/ip4/44.128.0.1/tcp/1/p2p/{RELAY}", f"/ip6/::1/tcp/2/p2p/{OTHER}")
    assert usable_relays(NetworkSettings(bootstrap=two)) == (two[0], two[2])
    assert usable_relays(NetworkSettings(bootstrap=two, trusted_relays=(RELAY_ADDRESS,))) == (RELAY_ADDRESS,)


@pytest.mark.parametrize(
    "address",
    ["/ip4/44.128.0.1/tcp/99999", "/ip4/boot/tcp/1", "/ip4/::1/tcp/1", "/nonsense/x", "/dns4/a,b/tcp/1", CIRCUIT],
)
def test_addresses_that_the_daemon_would_exit_on_are_not_given_to_it(address: str) -> None:
    assert usable_relays(NetworkSettings(bootstrap=(f"{address}/p2p/{OTHER}",))) == ()


def test_others_are_told_public_addresses_first_then_a_few_circuits() -> None:
    circuits = [CIRCUIT] * (MAX_CIRCUITS_TOLD + 2)
    told = to_tell(["/ip4/127.0.0.1/tcp/1", HOME, *circuits, "/ip4/44.128.0.9/tcp/1"])
    assert told == ("/ip4/44.128.0.9/tcp/1", *circuits[:MAX_CIRCUITS_TOLD], "/ip4/127.0.0.1/tcp/1", HOME)


def test_addresses_are_told_apart() -> None:
    assert relay_of(f"{CIRCUIT}/p2p/{ME}") == RELAY and relay_of(f"{RELAY_ADDRESS}") is None
    assert is_public("/ip4/44.128.0.1/tcp/1") and is_public("/ip6/2600::1/udp/1/quic-v1")
    assert not any(map(is_public, (CIRCUIT, HOME, "/ip6/::1/tcp/1", "/dns4/boot/tcp/1", "/ip4/x/tcp/1", "", "/ip4")))


def test_reachability_in_words() -> None:
    settings = NetworkSettings(bootstrap=(RELAY_ADDRESS,))
    joined = frozenset({RELAY})
    assert reachability(settings, (HOME, CIRCUIT), joined) == f"behind NAT, reachable through relay {RELAY}"
    assert reachability(settings, ("/ip4/44.128.0.9/tcp/1",), joined) == "public"
    assert reachability(NetworkSettings(serve_relay=True), (HOME,), joined) == "public"
    assert reachability(settings, (HOME,), joined) == "behind NAT, not reachable"
    assert reachability(settings, (HOME,), frozenset()) is None
    assert reachability(NetworkSettings(bootstrap=(f"{HOME}/p2p/{RELAY}",)), (HOME,), joined) is None


def test_lost_places_are_noticed_once_a_relay_is_back() -> None:
    watch = RelayWatch([RELAY])
    here, gone = frozenset({RELAY}), frozenset({OTHER})
    assert not watch.lost([HOME], here, 0.0) and not watch.lost([HOME], here, 100.0), "there has been no place yet"
    assert not watch.lost([HOME, CIRCUIT], here, 101.0)
    assert not watch.lost([HOME], gone, 200.0) and not watch.lost([HOME], here, 300.0)
    assert not watch.lost([HOME], here, 299.0 + RENEW_AFTER_S) and watch.lost([HOME], here, 300.0 + RENEW_AFTER_S)
    assert not watch.lost([HOME, CIRCUIT], here, 400.0) and not watch.lost([HOME], here, 401.0)


def test_a_relays_limits_are_read() -> None:
    # type STATUS, reservation of one byte, limit {120 s, 131072 bytes}, status OK
    assert read_limits(bytes.fromhex("08021a010022060878108080082864")) == CircuitLimits(120, 131_072)
    assert read_limits(bytes.fromhex("08022864")) == CircuitLimits(0, 0)
    with pytest.raises(ValueError, match="refused, with status 201"):
        read_limits(bytes.fromhex("080228c901"))


@given(st.binary(max_size=64))
def test_what_is_no_answer_of_a_relay_is_refused(junk: bytes) -> None:
    with suppress(ValueError):
        read_limits(junk)
