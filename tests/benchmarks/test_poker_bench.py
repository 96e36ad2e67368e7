"""`swarm bench poker`: what its rows say of some outcomes."""

from __future__ import annotations

import pytest

from benchmarks.poker.__main__ import Outcome, Returns, returns, rows
from swarm.telemetry.records import SuiteScores
from swarm.types import Estimate


def test_a_seed_counts_as_learned_if_its_interval_lies_above_the_untrained_policys() -> None:
    untrained = Returns({"caller": -0.5}, Estimate(-0.5, -0.6, -0.4))
    clear = Outcome(untrained, Returns({"caller": 0.3}, Estimate(0.3, 0.1, 0.5)), 7)
    unclear = Outcome(untrained, Returns({"caller": -0.3}, Estimate(-0.3, -0.45, -0.1)), 0)
    found = {row.what: row for row in rows("kuhn", (0, 1), (clear, unclear))}
    assert found["kuhn against all, seed 0"].met and not found["kuhn against all, seed 1"].met
    assert found["kuhn against caller"].spread == (-0.3, 0.3) and found["kuhn against caller"].baseline == -0.5
    assert all(row.ratio is None for row in found.values())


def test_nodes_that_play_hands_of_their_own_have_one_interval_together() -> None:
    scores = [SuiteScores(100, {"avg@1": Estimate(value, value - 0.1, value + 0.1)}) for value in (0.4, 0.5, 0.6, 0.7)]
    found = returns(scores, [{"caller": each} for each in scores], stack=10)
    assert found.opponents == {"caller": pytest.approx(1.0)}
    assert found.all == Estimate(*map(pytest.approx, (1.0, 0.0, 2.0)))
