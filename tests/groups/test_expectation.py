from __future__ import annotations

import math

import pytest

from swarm.groups.expectation import log_group_expectation, variance
from swarm.types import Completion


def _completion(*logprobs: float, num_tokens: int | None = None) -> Completion:
    return Completion("x", "stop", tuple(range(len(logprobs) if num_tokens is None else num_tokens)), logprobs)


def test_it_is_the_equation_in_log_space() -> None:
    rows = [(-0.3, -2.0, -0.1), (-1.5,), (-0.2, -0.2), (-4.0, -3.0, -5.0, -0.5)]
    q = [math.exp(sum(row) / len(row)) for row in rows]
    expected = math.log(sum(each**2 for each in q) / sum(q))
    assert log_group_expectation([_completion(*row) for row in rows]) == pytest.approx(expected, abs=1e-12)


def test_there_is_none_of_a_part_of_the_group() -> None:
    whole = [_completion(-0.5), _completion(-1.0)]
    assert log_group_expectation([]) is None
    assert log_group_expectation([*whole, Completion("text", "stop")]) is None
    assert log_group_expectation([*whole, _completion(-1.0, num_tokens=2)]) is None


def test_it_survives_underflow_and_never_exceeds_certainty() -> None:
    assert log_group_expectation([_completion(-2_000.0), _completion(-2_001.0)]) == pytest.approx(-2_000, abs=1)
    assert log_group_expectation([_completion(-0.0)] * 3) == 0
    assert log_group_expectation([_completion(-1.5)]) == -1.5, "a group of one expects itself"


def test_absurd_claims_raise_nothing() -> None:
    absurd = Completion("x", "stop", (1,) * 4, (-1e308,) * 4)
    assert log_group_expectation((absurd, absurd)) is not None
    assert log_group_expectation((absurd, Completion("y", "stop", (1,), (-1.0,)))) == pytest.approx(-1.0)


def test_the_variance_has_the_weights_of_the_expectation() -> None:
    q = [0.9, 0.4, 0.1]
    mean = sum(each**2 for each in q) / sum(q)
    expected = sum(each * (each - mean) ** 2 for each in q) / sum(q)
    assert variance([math.log(each) for each in q]) == pytest.approx(expected, abs=1e-15)
    assert variance([-0.7] * 4) == pytest.approx(0.0, abs=1e-15)


def test_the_variance_is_at_most_a_quarter_and_survives_underflow() -> None:
    # Half of the weight on q = 1, half on q near 0.
    assert variance([0.0, *[math.log(1e-3)] * 1000]) == pytest.approx(0.25, abs=1e-3)
    assert variance([-1e4, -1e4]) == 0.0
    assert variance([-1e308, -1.0]) == pytest.approx(0.0, abs=1e-15)
    assert math.isnan(variance([-1.0, math.nan]))
