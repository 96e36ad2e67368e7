"""What the NAT settings make of the daemon's arguments, and what its addresses say."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from swarm.net.addresses.bootstrap import Bootstraps
from swarm.net.addresses.nat import (
    MAX_RESERVATIONS,
    MIN_RELAYED_S,
    REFUSED_PAUSE_S,
    RENEW_EVERY_S,
    RETRY_UPGRADE_S,
    DirectUpgrades,
    Reservations,
    candidates,
    is_own_ip,
    is_public,
    most_reachable_first,
    nat_arguments,
    reachability,
    relay_of,
)
from swarm.net.config import NetworkSettings
from swarm.net.hivemind.control import CircuitLimits, read_limits
from swarm.net.records.identity import Identity

RELAY, OTHER, ME = (Identity.generate().peer_id for _ in range(3))
RELAY_ADDRESS = f"/ip4/44.128.0.1/tcp/4001/p2p/{RELAY}"
CIRCUIT = f"{RELAY_ADDRESS}/p2p-circuit"
RELAYS = {RELAY: ("/ip4/44.128.0.1/tcp/4001",)}
HOME = "/ip4/192.168.7.2/tcp/4001"
BASE = ("-natPortMap=1", "-autonat=0", "-relay=1")


def test_a_node_maps_a_port_and_can_dial_through_relays() -> None:
    assert nat_arguments(NetworkSettings()) == (*BASE, "-relayService=0")
    assert nat_arguments(NetworkSettings(nat_port_map=False))[0] == "-natPortMap=0"


def test_a_relay_is_public_and_limited() -> None:
    settings = NetworkSettings(serve_relay=True, bootstrap=(RELAY_ADDRESS,), relay_circuit_s=90)
    assert nat_arguments(settings) == (
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


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (NetworkSettings(bootstrap=(RELAY_ADDRESS,)), {RELAY}),
        (NetworkSettings(bootstrap=(f"/dns4/boot.example/tcp/1/p2p/{RELAY}",)), {RELAY}),
        (NetworkSettings(bootstrap=(RELAY_ADDRESS,), relay="off"), set()),
        (NetworkSettings(bootstrap=(RELAY_ADDRESS,), serve_relay=True), set()),
        (NetworkSettings(bootstrap=(RELAY_ADDRESS,), announce=("/ip4/44.128.0.9/tcp/1",)), set()),
        (NetworkSettings(bootstrap=(RELAY_ADDRESS,), announce=("/ip4/44.128.0.9/tcp/1",), relay="always"), {RELAY}),
        (NetworkSettings(bootstrap=(f"{HOME}/p2p/{RELAY}",)), set()),
        (NetworkSettings(bootstrap=(f"{HOME}/p2p/{RELAY}",), relay="always"), {RELAY}),
        (NetworkSettings(bootstrap=(f"{HOME}/p2p/{OTHER}",), trusted_relays=(RELAY_ADDRESS,)), {RELAY}),
    ],
)
def test_where_places_are_wanted(settings: NetworkSettings, expected: set[str]) -> None:
    assert set(candidates(settings, Bootstraps(settings.bootstrap).by_peer())) == expected


def test_others_are_told_public_addresses_first_then_circuits(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, router = "/ip4/44.128.0.9/tcp/1", "/ip4/44.128.0.8/tcp/1"
    monkeypatch.setattr("swarm.net.addresses.nat.is_own_ip", lambda address: address == mine)
    told = most_reachable_first(["/ip4/127.0.0.1/tcp/1", HOME, router, CIRCUIT, mine])
    assert told == (mine, CIRCUIT, router, "/ip4/127.0.0.1/tcp/1", HOME)


def test_addresses_are_told_apart() -> None:
    assert relay_of(f"{CIRCUIT}/p2p/{ME}") == RELAY and relay_of(f"{RELAY_ADDRESS}") is None
    assert is_public("/ip4/44.128.0.1/tcp/1") and is_public("/ip6/2600::1/udp/1/quic-v1")
    assert not any(map(is_public, (CIRCUIT, HOME, "/ip6/::1/tcp/1", "/dns4/boot/tcp/1", "/ip4/x/tcp/1", "", "/ip4")))


def test_addresses_of_this_machine() -> None:
    assert is_own_ip("/ip4/127.0.0.1/tcp/1") and not is_own_ip("/ip4/44.128.0.9/tcp/1")


def test_reachability_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = frozenset({RELAY})

    def told(*addresses: str) -> str | None:
        return reachability(NetworkSettings(), RELAYS, addresses, joined)

    assert told(HOME, CIRCUIT) == f"behind NAT, reachable through relay {RELAY}"
    seen = "/ip4/44.128.0.9/tcp/1"
    assert told(HOME, seen) == "behind NAT, reachable only if the router forwards a port"
    assert told(HOME, seen, CIRCUIT) == f"behind NAT, reachable through relay {RELAY}"
    assert told(HOME) == "behind NAT, not reachable"
    monkeypatch.setattr("swarm.net.addresses.nat.is_own_ip", lambda address: address == seen)
    assert told(HOME, seen, CIRCUIT) == "public"
    assert reachability(NetworkSettings(serve_relay=True), {}, (HOME,), joined) == "public"
    assert reachability(NetworkSettings(), RELAYS, (HOME,), frozenset()) is None
    assert reachability(NetworkSettings(), {RELAY: (HOME,)}, (HOME,), joined) is None


def test_places_are_renewed_and_asked_for_again_after_a_loss_or_a_refusal() -> None:
    relays, reservations = {RELAY: (HOME, "/ip4/44.128.0.1/tcp/4001")}, Reservations()
    due = partial(reservations.due, relays)
    here, gone = frozenset({RELAY}), frozenset({OTHER})
    assert due(gone, 0.0) == [] and due(here, 0.0) == [RELAY] and reservations.addresses(here) == ()
    reservations.granted(RELAY, 0.0)
    assert reservations.addresses(here) == (CIRCUIT,), "the address that is of use from elsewhere"
    assert reservations.addresses(gone) == ()
    assert due(here, RENEW_EVERY_S - 1) == [] and reservations.due(relays, here, RENEW_EVERY_S) == [RELAY]
    assert due(gone, 70.0) == [] and due(here, 71.0) == [RELAY], "the connection broke"
    reservations.refused(RELAY, 71.0)
    assert reservations.addresses(here) == ()
    assert due(here, 70.0 + REFUSED_PAUSE_S) == [] and reservations.due(relays, here, 71.0 + REFUSED_PAUSE_S) == [RELAY]


def test_places_at_three_relays_are_enough() -> None:
    relays = {Identity.generate().peer_id: ("/ip4/44.128.0.1/tcp/1",) for _ in range(5)}
    reservations = Reservations()
    due = partial(reservations.due, relays)
    first = due(frozenset(relays), 0.0)
    assert len(first) == MAX_RESERVATIONS
    for relay in first:
        reservations.granted(relay, 0.0)
    assert due(frozenset(relays), 1.0) == []
    assert len(due(frozenset(relays) - {first[0]}, 2.0)) == 1, "another takes the place of one that left"


def test_a_relay_that_is_named_later_is_asked_and_one_that_no_longer_is_one_left() -> None:
    relays: dict[str, tuple[str, ...]] = {}
    reservations = Reservations()
    due = partial(reservations.due, relays)
    both = frozenset({RELAY, OTHER})
    assert due(both, 0.0) == []
    relays[RELAY] = (HOME, "/ip4/44.128.0.1/tcp/4001")
    assert due(both, 1.0) == [RELAY]
    reservations.granted(RELAY, 1.0)
    assert reservations.addresses(both) == (CIRCUIT,)
    # It came back with another key.
    relays[OTHER] = relays.pop(RELAY)
    assert due(both, 2.0) == [OTHER] and reservations.addresses(both) == ()


def test_a_detour_is_left_once_both_ends_know_where_they_are() -> None:
    upgrades = DirectUpgrades()
    outer, theirs = "/ip4/44.128.0.8/udp/1/quic-v1", ["/ip4/44.128.0.9/udp/1/quic-v1", CIRCUIT]
    through_relay = {ME: (CIRCUIT,), OTHER: ("/ip4/10.0.0.1/tcp/1",)}

    def due(now: float, own: tuple[str, ...] = (HOME, outer), addresses: list[str] = theirs) -> list[str]:
        return upgrades.due(through_relay, own, lambda peer_id: addresses, now)

    assert due(0.0) == [], "not at once"
    assert due(MIN_RELAYED_S, own=(HOME,)) == [] and due(MIN_RELAYED_S, own=("/ip4/44.128.0.8/tcp/1",)) == []
    assert due(MIN_RELAYED_S, addresses=[CIRCUIT, "/ip4/44.128.0.9/tcp/1"]) == []
    assert due(MIN_RELAYED_S) == [ME]
    assert due(MIN_RELAYED_S + RETRY_UPGRADE_S - 1) == [] and due(MIN_RELAYED_S + RETRY_UPGRADE_S) == [ME]
    assert due(MIN_RELAYED_S + 2 * RETRY_UPGRADE_S) == [], "later each time"
    through_relay[ME] = (CIRCUIT, outer)
    assert due(10_000.0) == [], "direct beside it"


def test_a_relays_limits_are_read() -> None:
    # type STATUS, reservation of one byte, limit {120 s, 131072 bytes}, status OK
    assert read_limits(bytes.fromhex("08021a010022060878108080082864")) == CircuitLimits(120, 131_072)
    assert read_limits(bytes.fromhex("08022864")) == CircuitLimits(0, 0)
    with pytest.raises(ValueError, match="refused the reservation with status 201"):
        read_limits(bytes.fromhex("080228c901"))


@given(st.binary(max_size=64))
def test_what_is_no_answer_of_a_relay_is_refused(junk: bytes) -> None:
    with suppress(ValueError):
        read_limits(junk)
