"""pass@k and avg@k against hand-computed values and independent references."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, strategies as st

from swarm.suites.asking import ks, mean_over_questions, pass_at, suite_figures
from swarm.telemetry import intervals
from swarm.telemetry.intervals import bootstrap_mean, wilson_interval


@pytest.mark.parametrize(
    ("k", "samples", "right", "expected"),
    [
        (1, 1, 0, 0.0),
        (1, 1, 1, 1.0),
        (1, 4, 1, 0.25),
        (2, 5, 2, 0.7),
        (4, 5, 2, 1.0),
        (2, 4, 0, 0.0),
        (256, 256, 1, 1.0),
    ],
)
def test_pass_at_k_by_hand(k: int, samples: int, right: int, expected: float) -> None:
    assert pass_at(k, samples, right) == pytest.approx(expected, abs=1e-15)


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n), st.integers(0, n))))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(case: tuple[int, int, int]) -> None:
    samples, k, right = case
    subsets = list(combinations([True] * right + [False] * (samples - right), k))
    assert pass_at(k, samples, right) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


@pytest.mark.parametrize("p", [0.03, 0.5, 0.9])
def test_pass_at_k_is_unbiased(p: float) -> None:
    samples = 16
    for k in (1, 4, 16):
        chances = [comb(samples, right) * p**right * (1 - p) ** (samples - right) for right in range(samples + 1)]
        expected = sum(chance * pass_at(k, samples, right) for right, chance in enumerate(chances))
        assert expected == pytest.approx(1 - (1 - p) ** k, abs=1e-12)


@pytest.mark.parametrize(("k", "samples", "right"), [(0, 4, 1), (5, 4, 1), (1, 4, 5), (1, 4, -1)])
def test_impossible_counts_are_refused(k: int, samples: int, right: int) -> None:
    with pytest.raises(ValueError, match="1 <= k <= n"):
        pass_at(k, samples, right)


def test_pass_is_given_at_powers_of_two_and_at_k() -> None:
    assert [ks(k) for k in (1, 2, 3, 8, 12)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 12]]


def test_figures_of_a_suite_by_hand() -> None:
    figures = suite_figures([(1.0, 0.0), (0.0, 0.0), (1.0, 1.0)], 2, 0.99)
    assert {name: each.value for name, each in figures.items()} == pytest.approx(
        {"avg@2": 0.5, "pass@1": 0.5, "pass@2": 2 / 3}
    )
    assert (figures["pass@2"].low, figures["pass@2"].high) == wilson_interval(2, 3)
    assert (figures["avg@2"].low, figures["avg@2"].high) == bootstrap_mean([0.5, 0.0, 1.0])
    partial = suite_figures([(0.5, 1.0), (0.5, 0.5)], 2, 0.99)
    assert (partial["avg@2"].value, partial["pass@1"].value, partial["pass@2"].value) == (0.625, 0.25, 0.5)
    lenient = suite_figures([(0.5, 1.0), (0.5, 0.2)], 2, 0.5)
    assert (lenient["avg@2"].value, lenient["pass@1"].value, lenient["pass@2"].value) == (0.55, 0.75, 1.0)
    assert suite_figures([], 4, 0.99) == {}


def test_an_interval_is_over_questions_and_never_pretends_to_know() -> None:
    assert mean_over_questions([]) is None
    unknown = mean_over_questions([0.25])
    assert unknown is not None and (unknown.value, unknown.low, unknown.high) == (0.25, 0.0, 1.0)
    solved = mean_over_questions([1.0] * 20)
    assert solved is not None and solved.value == solved.high == 1.0 and solved.low == pytest.approx(0.8389, abs=5e-5)
    values = np.random.default_rng(3).beta(2, 5, 400)
    found = mean_over_questions(list(values))
    error = values.std(ddof=1) / 20
    assert found is not None and found.low == pytest.approx(values.mean() - 1.96 * error, abs=0.1 * error)
    assert found.high == pytest.approx(values.mean() + 1.96 * error, abs=0.1 * error)


def test_a_bootstrap_in_parts_draws_what_one_at_once_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).random(37)
    whole = bootstrap_mean(values)
    monkeypatch.setattr(intervals, "MAX_DRAWN", 37 * 1_234)
    assert bootstrap_mean(values) == whole
