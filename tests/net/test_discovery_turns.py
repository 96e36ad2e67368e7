"""Who renews its entry in the directory: all in a small swarm, a few at a time in a large one."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from swarm.net.config import NetworkSettings
from swarm.net.hivemind.session import APART, RENEWALS, Discovery
from swarm.net.membership.dialling import ENOUGH_PEERS
from swarm.net.membership.member import Member, Profile
from swarm.net.records.identity import Identity
from swarm.net.runtime import AsyncioRuntime
from swarm.net.trust.sharing import OfferRate

from .records import sealed_manifest


def turns(num_members: int, num_peers: int) -> int:
    """Of a thousand."""
    founder = Identity.generate()
    member = Member(NetworkSettings(), founder, Profile(), sealed_manifest(founder))
    member.peers.in_run = frozenset(f"peer {k}" for k in range(num_peers))
    member.records.offer_rate = OfferRate(clock=lambda: 0.0)
    for k in range(num_members):
        member.records.offer_rate.heard(f"peer {k}", 1, 1.0)
    signal = AsyncioRuntime().signal
    discovery = Discovery(member, Path("unused"), signal(), signal(), lambda: True)
    return sum(discovery._has_turn() for _ in range(1_000))


def test_all_take_part_in_a_small_swarm_and_part_of_a_large_one() -> None:
    assert turns(RENEWALS // 2, ENOUGH_PEERS) == 1_000
    assert turns(3 * RENEWALS, ENOUGH_PEERS) == pytest.approx(333, abs=80)


def test_who_has_few_peers_stays_to_be_found_whatever_others_pretend() -> None:
    assert turns(4_000, ENOUGH_PEERS - 1) == 1_000


def test_an_entry_outlives_the_longest_pause_between_its_renewals() -> None:
    longest_s = 100.0
    with pytest.raises(ValidationError):
        NetworkSettings(announce_every_s=longest_s + 1.0)
    founder = Identity.generate()
    settings = NetworkSettings(announce_every_s=longest_s)
    member = Member(settings, founder, Profile(), sealed_manifest(founder), clock=lambda: 1_000.0)
    assert member.own.sealed()[1] - 1_000.0 > longest_s * max(APART)
