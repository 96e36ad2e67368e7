"""Demand is what peers say, and no peer speaks for the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import msgspec
import pytest

from swarm.extras.give import usage as module
from swarm.extras.give.demand import EXPLORED, TaskDemand
from swarm.extras.give.usage import Given, UsageWatch
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.services.usage import PROTOCOL, GroupUsage

LIAR, HONEST = "a-liar", "b-honest"


class Members:
    """A giver's watch, and two members that answer as a test says."""

    def __init__(self, watch: UsageWatch, peers: dict[str, MemoryTransport]) -> None:
        self.watch, self._peers = watch, peers

    def answer(self, wants: dict[str, float] | None = None, **used: int) -> None:
        """Ask both, which say that they used so many groups."""
        for name, peer in self._peers.items():
            reply = msgspec.msgpack.encode(GroupUsage(used[name], used[name], wants=wants or {}))
            peer.serve(PROTOCOL, lambda remote, request, reply=reply: reply)
        self.watch.ask(time.monotonic() + 5.0)


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> Iterator[Members]:
    monkeypatch.setattr(module, "ASK_EVERY_S", 600.0)  # when the test asks
    hub = MemoryHub()
    giver = MemoryTransport(hub, "giver")
    peers = {"liar": MemoryTransport(hub, LIAR), "honest": MemoryTransport(hub, HONEST)}
    for each in (giver, *peers.values()):
        each.start()
    watch = UsageWatch(giver, TaskDemand())
    yield Members(watch, peers)
    watch.close()
    for each in (giver, *peers.values()):
        each.close()


def test_a_peer_whose_uses_fall_takes_nothing_from_the_others(members: Members) -> None:
    members.watch.look(100)
    members.answer(liar=2**40, honest=5)
    members.watch.look(200)
    members.answer(liar=1, honest=15)
    assert members.watch.allowed == 200 + 13, "ten, and a little more"


def test_a_peer_that_lies_about_its_use_costs_no_more_than_a_few_times_what_the_other_uses(members: Members) -> None:
    given, used = 0, 0
    for _ in range(20):
        given, used = members.watch.allowed, used + 5
        members.watch.look(given)
        members.answer(liar=2**40 + given, honest=used)
        assert members.watch.allowed - given <= EXPLORED + 3 * 5


def test_what_a_receiver_wants_of_each_task_is_heard(members: Members) -> None:
    tasks = members.watch._tasks
    members.watch.look(10)
    members.answer(liar=1, honest=1, wants={"gcd": 0.9, "lcm": 0.1})
    assert tasks.part("gcd", ("gcd", "lcm")) == 1
    assert 0.1 <= tasks.part("lcm", ("gcd", "lcm")) < 0.2
    assert members.watch.known.keys() == {LIAR, HONEST}
    assert not any(each.wants for each in members.watch.known.values()), "that would be 64 KiB a peer in given.json"


def test_its_end_waits_for_no_peer_that_is_silent(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, released = threading.Event(), threading.Event()

    def ask(transport: object, peer_id: str, timeout_s: float) -> GroupUsage:
        asked.set()
        released.wait(30.0)
        return GroupUsage()

    monkeypatch.setattr(module, "ask_usage", ask)
    waiting = threading.Thread(target=members.watch.ask, args=(time.monotonic() + 30.0,))
    waiting.start()
    assert asked.wait(30.0)
    began = time.monotonic()
    members.watch.last_word(0.5)
    members.watch.close()
    assert time.monotonic() - began < 2.0
    released.set()
    waiting.join()


def test_its_end_asks_again_while_its_groups_are_under_way(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(transport: object, peer_id: str, timeout_s: float) -> GroupUsage:
        asked.append(peer_id)
        return GroupUsage(3, 1) if len(asked) > 2 else GroupUsage()

    monkeypatch.setattr(module, "ask_usage", ask)
    members.watch.last_word(30.0)
    assert asked == [HONEST, LIAR] * 2 or asked == [LIAR, HONEST] * 2
    assert Given(3, members.watch.known).used == 2


def test_silent_peers_are_asked_last(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(transport: object, peer_id: str, timeout_s: float) -> GroupUsage:
        asked.append(peer_id)
        if peer_id == LIAR:
            raise module.PeerUnreachable("it says nothing")
        return GroupUsage(3, 3)

    monkeypatch.setattr(module, "ask_usage", ask)
    for _ in range(2):
        members.watch.ask(time.monotonic() + 5.0)
    assert asked == [LIAR, HONEST, HONEST, LIAR]


def test_what_is_kept_has_an_end(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN", 1)
    members.answer(liar=1, honest=1)
    assert list(members.watch.known) == [HONEST], "the last that answered"
