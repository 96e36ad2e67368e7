"""A bootstrap that hangs up because it is crowded: who leaves it alone, for how long, and who does not."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from swarm.net.membership import dialling as crowded_module
from swarm.net.membership.dialling import APART, ENOUGH_HOSTS, FIRST_PAUSE_S, KEPT_S, MAX_PAUSE_S
from swarm.net.records.identity import Identity

from .test_dialling import BOOT, BOOTSTRAP, Node

TRIMMED_AFTER_S = 150
"""What the daemon's grace period comes to."""
HOUR_S = 3_600
AS_BEFORE = HOUR_S // (TRIMMED_AFTER_S + 3)
"""Dials in an hour by a node that returns at once."""


class Member(Node):
    """A node whose bootstrap hangs up a while after each dial, and that is connected with others all the time."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch, BOOTSTRAP)
        self.others: frozenset[str] = frozenset()
        self.kept_s: float = TRIMMED_AFTER_S
        self._hangs_up_at = 0.0
        self.met_at: list[float] = []

    def meet(self, *hosts: str, dialled: bool = True, ends: int = 1) -> frozenset[str]:
        """Connect with one member at each of these hosts."""
        met = {Identity.generate().peer_id: (f"/ip4/{host}/tcp/{index}",) * ends for index, host in enumerate(hosts)}
        self.member.peers.observed |= met
        self.count(self.others | met.keys())
        if dialled:
            for peer_id, addresses in met.items():
                asyncio.run(self.dialling.dial(peer_id, addresses))
        return frozenset(met)

    def lose(self, peer_ids: frozenset[str]) -> None:
        self.count(self.others - peer_ids)

    def count(self, others: frozenset[str]) -> None:
        """Be connected with exactly these members."""
        self.others = self.member.peers.in_run = others

    @property
    def with_bootstrap(self) -> bool:
        return self.clock.now < self._hangs_up_at

    def live(self, seconds: float) -> int:
        """Let time pass; returns how often the node dialled its bootstrap."""
        dials = 0
        for _ in range(int(seconds)):
            connected = self.others | ({BOOT} if self.with_bootstrap else set())
            if BOOT in connected:
                self.met_at.append(self.clock.now)
            if BOOT in self.dial_due(connected):
                self._hangs_up_at = self.clock.now + 1 + self.kept_s
                dials += 1
            self.clock.now += 1
        return dials

    def longest_absence_s(self) -> float:
        return max(later - earlier for earlier, later in zip(self.met_at, self.met_at[1:], strict=False))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Member:
    return Member(tmp_path, monkeypatch)


def hosts(count: int) -> list[str]:
    return [f"10.0.1.{index}" for index in range(count)]


def test_a_node_with_enough_members_leaves_a_bootstrap_that_hangs_up_to_others(node: Member) -> None:
    node.meet(*hosts(ENOUGH_HOSTS))
    assert node.live(1) == 1
    early = node.live(HOUR_S)
    assert 1 <= early <= 8, "after 5, 10, 20 and 30 minutes, or half of that"
    late = node.live(10 * HOUR_S)
    assert 10 * HOUR_S / (MAX_PAUSE_S + KEPT_S) <= late <= 10 * HOUR_S / (APART[0] * MAX_PAUSE_S)


def test_a_node_with_few_members_keeps_trying_as_before(node: Member) -> None:
    node.meet(*hosts(ENOUGH_HOSTS - 1))
    assert node.live(HOUR_S) >= AS_BEFORE


def test_the_only_peer_of_a_private_run_is_dialled_at_once(node: Member) -> None:
    assert node.live(HOUR_S) >= AS_BEFORE


def test_a_node_that_loses_its_members_is_back_at_once(node: Member) -> None:
    members = node.meet(*hosts(ENOUGH_HOSTS))
    node.live(TRIMMED_AFTER_S + 10)
    assert node.live(60) == 0
    node.lose(members)
    assert node.live(1) == 1


def test_a_bootstrap_that_restarts_is_dialled_at_once(node: Member) -> None:
    node.meet(*hosts(ENOUGH_HOSTS))
    node.kept_s = KEPT_S
    assert node.live(1) == 1
    assert node.live(KEPT_S + 3) == 1


def test_nodes_cut_off_together_do_not_return_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    returned = []
    for index in range(20):
        monkeypatch.setattr(crowded_module, "random", random.Random(index))
        folder = tmp_path / str(index)
        folder.mkdir()
        node = Member(folder, monkeypatch)
        node.meet(*hosts(ENOUGH_HOSTS))
        node.live(TRIMMED_AFTER_S + 5)
        waited = 0
        while not node.live(1):
            waited += 1
        returned.append(waited)
    assert max(returned) - min(returned) > 0.3 * FIRST_PAUSE_S and len(set(returned)) > 10


def test_a_relay_that_carries_this_node_is_dialled_at_once(node: Member) -> None:
    node.meet(*hosts(ENOUGH_HOSTS))
    assert node.live(1) == 1
    node.member.own.addresses = (f"{BOOTSTRAP}/p2p-circuit",)
    while node.with_bootstrap:
        assert node.live(1) == 0
    node.member.own.addresses = ()  # the session drops the address with the connection
    assert node.live(4) == 1


def test_who_dials_a_node_does_not_keep_it_from_its_bootstraps(node: Member) -> None:
    node.meet(*hosts(100), dialled=False)
    assert node.live(HOUR_S) >= AS_BEFORE


def test_many_names_of_one_machine_do_not_keep_a_node_from_its_bootstraps(node: Member) -> None:
    node.meet(*["10.0.1.1"] * 30)
    assert node.live(HOUR_S) >= AS_BEFORE


def test_one_peer_that_connects_from_everywhere_is_one(node: Member) -> None:
    (peer,) = node.meet("10.0.1.1")
    node.member.peers.observed[peer] = tuple(f"/ip4/{host}/tcp/1" for host in hosts(ENOUGH_HOSTS))
    assert node.live(HOUR_S) >= AS_BEFORE


def test_who_left_and_came_back_was_not_chosen(node: Member) -> None:
    members = node.meet(*hosts(ENOUGH_HOSTS))
    node.live(10)
    node.lose(members)
    node.live(10)
    node.count(members)
    assert node.live(HOUR_S) >= AS_BEFORE


def test_a_node_among_attackers_only_still_meets_its_bootstraps(node: Member) -> None:
    node.meet(*hosts(32))
    node.live(6 * HOUR_S)
    assert node.longest_absence_s() <= MAX_PAUSE_S + 5
