"""A curve is the means of its rounds, in bounded memory."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from swarm.telemetry.curves import MAX_BINS, RECENT, Curve, thinned


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=2_000))
def test_it_has_few_points_whose_mean_is_that_of_all_values(values: list[float]) -> None:
    curve = Curve()
    for number, value in enumerate(values, 1):
        curve.add(number, value)
    points = curve.points()
    assert len(points) <= MAX_BINS
    rounds = [number for number, _ in points]
    assert rounds == sorted(set(rounds)) and rounds[-1] >= len(values)
    stride = rounds[0]
    counts = [min(number, len(values)) - (number - stride) for number in rounds]
    mean = sum(value * count for (_, value), count in zip(points, counts, strict=True)) / len(values)
    assert mean == pytest.approx(sum(values) / len(values), abs=1e-3)


def test_few_rounds_are_their_values() -> None:
    curve = Curve()
    for number in range(1, MAX_BINS + 1):
        curve.add(number, float(number))
    assert curve.points() == [(number, float(number)) for number in range(1, MAX_BINS + 1)]
    curve.add(MAX_BINS + 1, 0.0)
    assert curve.points()[:2] == [(2, 1.5), (4, 3.5)]


def test_its_beginning_its_present_and_its_best() -> None:
    curve = Curve()
    assert (curve.first, curve.recent, curve.best, curve.last) == (None,) * 4 and curve.error == math.inf
    for number, value in enumerate([1.0] * RECENT + [5.0] * RECENT + [2.0] * RECENT, 1):
        curve.add(number, value)
    assert (curve.first, curve.recent, curve.best, curve.last) == (1.0, 2.0, 5.0, 2.0) and curve.error == 0


def test_what_is_not_a_number_is_left_out() -> None:
    curve = Curve()
    for number, value in enumerate([None, math.nan, math.inf, 3.0], 1):
        curve.add(number, value)
    assert curve.points() == [(4, 3.0)]


def test_repeated_rounds_replace_the_lost_ones() -> None:
    curve = Curve()
    for number in range(1, 31):
        curve.add(number, 1.0)
    curve.cut(10)
    for number in range(11, 21):
        curve.add(number, 2.0)
    assert curve.points() == [(number, 1.0 if number <= 10 else 2.0) for number in range(1, 21)]


def test_thinned_curves_keep_their_end() -> None:
    points = [(number, float(number)) for number in range(1, 101)]
    assert len(thinned(points, 30)) <= 30 and thinned(points, 30)[-1] == points[-1]
    assert thinned(points[:5], 30) == points[:5]
