"""No group vanishes: what was received is used, dropped with a reason, or still held."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from swarm.telemetry.ledger import Ledger

SOME = st.integers(0, 20)


class Node(RuleBasedStateMachine):
    """Groups move through a node at random; the ledger is told, and sometimes replaced by its own snapshot."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.pending = 0
        self.unused = 0
        self.used = 0

    @rule(n=SOME, refused=SOME)
    def arrive(self, n: int, refused: int) -> None:
        self.ledger.received(n + refused)
        self.ledger.dropped("bad_signature", refused)
        self.pending += n

    @rule(n=SOME, without_signal=SOME)
    def verify(self, n: int, without_signal: int) -> None:
        n = min(n, self.pending)
        without_signal = min(n, without_signal)
        self.pending -= n
        self.unused += n - without_signal
        self.ledger.dropped("zero_advantage", without_signal)

    @rule(n=SOME, again=SOME)
    def train(self, n: int, again: int) -> None:
        n = min(n, self.unused)
        again = min(again, self.used)
        self.ledger.used_external(n, again=again)
        self.unused -= n
        self.used += n

    @rule(n=SOME)
    def expire(self, n: int) -> None:
        n = min(n, self.unused)
        self.ledger.dropped("stale", n)
        self.unused -= n

    @rule()
    def resume(self) -> None:
        snapshot = self.ledger.snapshot()
        self.ledger = Ledger()
        self.ledger.received(99)
        self.ledger.restore(msgspec.json.decode(msgspec.json.encode(snapshot)))
        assert self.ledger.snapshot() == snapshot

    @invariant()
    def every_group_is_accounted_for(self) -> None:
        counts = self.ledger.snapshot()
        held = self.unused + self.pending
        assert counts["received"] == counts["used_external"] + sum(counts["dropped"].values()) + held
        assert self.ledger.unaccounted(self.unused, self.pending) == 0


TestNode = Node.TestCase


def test_a_lost_group_shows() -> None:
    ledger = Ledger()
    ledger.received(5)
    ledger.used_external(2)
    ledger.dropped("stale")
    assert ledger.unaccounted(pool=1, pending=0) == 1


def test_own_groups_are_counted_apart_from_external_ones() -> None:
    ledger = Ledger()
    ledger.generated(8)
    ledger.local("zero_advantage", 3)
    ledger.local("not_sampled")
    ledger.used_local(4)
    ledger.shared(8)
    assert ledger.snapshot() == {
        "generated": 8,
        "shared": 8,
        "received": 0,
        "used_local": 4,
        "used_external": 0,
        "dropped": {},
        "local": {"zero_advantage": 3, "not_sampled": 1},
        "reused_external": 0,
        "offered": 0,
        "checked": 0,
    }


def test_a_snapshot_stays_as_it_was() -> None:
    ledger = Ledger()
    ledger.dropped("stale")
    before = ledger.snapshot()
    ledger.dropped("stale")
    ledger.dropped("unknown_task", 0)
    assert before["dropped"] == {"stale": 1}
    assert ledger.snapshot()["dropped"] == {"stale": 2}
    other = Ledger()
    other.restore(before)
    other.dropped("stale")
    assert before["dropped"] == {"stale": 1}


def test_negative_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 0, got -1"):
        Ledger().received(-1)
