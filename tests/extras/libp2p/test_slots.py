"""Who is let in and who makes room, in the transport in pure Python."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from swarm.extras.libp2p import slots as module
from swarm.extras.libp2p.slots import (
    HANDSHAKES_AT_ONCE,
    MAX_SLOTS,
    MAX_SLOTS_PER_PEER,
    PATIENCE_S,
    ConnectionSlots,
    Slot,
)


class World:
    """ConnectionSlots, a clock, and who has lost its slot."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *members: str) -> None:
        monkeypatch.setattr(module, "HANDSHAKES_AT_ONCE", 1e9)
        self.now = 0.0
        self.slots = ConnectionSlots(lambda: self.now)
        self.slots.is_member = lambda peer_id: peer_id in members
        self.lost: list[str] = []

    def come(self, name: str, address: str = "10.0.0.1", *, after_s: float = 0.0) -> Slot | None:
        """A connection whose handshake is done at once."""
        self.now += after_s
        slot = self.slots.take(address, lambda: self.lost.append(name))
        if slot is not None:
            self.slots.name(slot, name)
        return slot


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    return lambda *members: World(monkeypatch, *members)


def test_ten_thousand_visits_take_no_slot(world: Callable[..., World]) -> None:
    here = world()
    for number in range(10_000):
        slot = here.come(f"visitor {number % 7}", after_s=0.1)
        assert slot is not None
        here.slots.release(slot)
    assert len(here.slots) == 0 and here.lost == []


def test_idle_strangers_make_room_the_oldest_first_and_members_do_not(world: Callable[..., World]) -> None:
    here = world("member")
    assert here.come("member")
    for number in range(MAX_SLOTS - 1):
        assert here.come(f"stranger {number}")
    assert here.come("too early", after_s=PATIENCE_S / 2) is None
    assert here.come("newcomer", after_s=PATIENCE_S / 2) and here.lost == ["stranger 0"]
    assert len(here.slots) == MAX_SLOTS


def test_a_node_full_of_members_lets_nobody_else_in(world: Callable[..., World]) -> None:
    here = world(*(f"member {number}" for number in range(MAX_SLOTS)))
    assert all(here.come(f"member {number}", f"10.0.0.{number}") for number in range(MAX_SLOTS))
    assert here.come("newcomer", "10.0.1.1", after_s=2 * PATIENCE_S) is None and here.lost == []


def test_one_address_holds_not_all_slots_whoever_it_claims_to_be(world: Callable[..., World]) -> None:
    here = world(*(f"member {number}" for number in range(MAX_SLOTS)))
    for number in range(MAX_SLOTS):
        assert here.come(f"member {number}")
    assert here.come("newcomer", "10.0.0.2") and here.lost == ["member 0"]
    assert here.come("another of many", after_s=PATIENCE_S) is not None and here.lost[1:] == ["newcomer"]


def test_of_one_address_strangers_go_first(world: Callable[..., World]) -> None:
    here = world("member")
    assert here.come("member") and all(here.come(f"stranger {number}") for number in range(MAX_SLOTS - 1))
    assert here.come("newcomer", "10.0.0.2") and here.lost == ["stranger 0"]


def test_one_identity_holds_few_slots_and_loses_the_oldest(world: Callable[..., World]) -> None:
    here = world()
    for _ in range(MAX_SLOTS_PER_PEER):
        assert here.come("one", "10.0.0.1")
    assert here.lost == []
    assert here.come("one", "10.0.0.2") and here.lost == ["one"] and len(here.slots) == MAX_SLOTS_PER_PEER


def test_an_address_has_so_many_handshakes_and_others_have_theirs() -> None:
    here = ConnectionSlots(lambda: 0.0)
    for _ in range(int(HANDSHAKES_AT_ONCE)):
        slot = here.take("10.0.0.1", lambda: None)
        assert slot is not None
        here.release(slot)
    assert here.take("10.0.0.1", lambda: None) is None
    assert here.take("10.0.0.2", lambda: None) is not None
