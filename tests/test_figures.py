"""How the parts of a figure combine."""

from __future__ import annotations

import pytest

from swarm.figures import Figure, Reduction, joined, values


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("token_mean", 8 / 5), ("sequence_mean", 8 / 5), ("sum", 8.0), ("max", 6.0), ("ess", 64 / (5 * 20.0))],
)
def test_parts_combine_as_declared(reduction: Reduction, expected: float) -> None:
    parts = [{"x": Figure(reduction, 2.0, 1, 4.0)}, {}, {"x": Figure(reduction, 6.0, 4, 16.0), "y": Figure("sum", 1)}]
    assert values(joined(parts)) == {"x": pytest.approx(expected), "y": 1.0}


def test_a_mean_over_nothing_is_zero() -> None:
    assert Figure("token_mean", 0.0, 0).value == 0.0
    assert Figure("ess", 0.0, 0).value == 1.0
