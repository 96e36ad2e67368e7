from __future__ import annotations

import math

import pytest

from swarm.received.plausibility import (
    ENOUGH,
    WIDEST_NATS,
    Plausibility,
    PlausibilitySettings,
    is_rewarded,
    least_probable,
)


def _knowing(*means: float) -> Plausibility:
    """One whose own rewarded completions had these mean log-probabilities."""
    plausibility = Plausibility(PlausibilitySettings(fence=3.0, slack_nats=1.0))
    for mean in means:
        plausibility.learn([[mean, mean], [-9.0]], [1.0, 0.0])
    return plausibility


def test_the_fence_lies_far_outside_of_own_rewarded_completions() -> None:
    wide = _knowing(*[-0.1, -0.2, -0.5, -1.0] * ENOUGH)
    assert wide.fence == pytest.approx(-0.625 - 3 * (0.625 - 0.175)), "three times the distance between the quartiles"
    narrow = _knowing(*[-0.3] * ENOUGH)
    assert narrow.fence == pytest.approx(-1.3), "others' policies may differ a little"


def test_the_fence_is_bounded_however_much_own_completions_differ() -> None:
    plausibility = Plausibility(PlausibilitySettings(fence=3.0, slack_nats=1.0))
    plausibility.learn([[-1.0], [-2.0], [-3.0], [-5.0], [-6.0]] * ENOUGH, [0.0] * 5 * ENOUGH)
    assert plausibility.fence == pytest.approx(-3.0 - WIDEST_NATS)
    willing = Plausibility(PlausibilitySettings(fence=3.0, slack_nats=100.0))
    willing.learn([[-1.0]] * ENOUGH, [1.0] * ENOUGH)
    assert willing.fence == pytest.approx(-101.0), "what is set counts"


def test_until_enough_is_known_everything_is_plausible() -> None:
    assert _knowing(*[-0.3] * (ENOUGH // 2 - 1)).fence == -math.inf


def test_where_hardly_anything_is_rewarded_all_own_completions_count() -> None:
    plausibility = Plausibility(PlausibilitySettings(fence=3.0, slack_nats=1.0))
    plausibility.learn([[-2.0]] * ENOUGH, [0.0] * ENOUGH)
    assert plausibility.fence == pytest.approx(-3.0)
    plausibility.learn([[-0.5]] * ENOUGH, [1.0] * ENOUGH)
    assert plausibility.fence == pytest.approx(-1.5)


def test_improbable_completions_are_left_out() -> None:
    plausibility = _knowing(*[-0.3] * ENOUGH)
    assert plausibility.plausible([[-0.5] * 4, [-5.0] * 4, []]) == [True, False, True]


def test_a_short_marker_in_a_long_text_stands_out() -> None:
    plain = [-0.3] * 200
    marked = [*plain[:50], -12.0, -12.0, -12.0, *plain[50:]]
    assert least_probable(plain) == pytest.approx(-0.3)
    assert least_probable(marked) == pytest.approx((3 * -12.0 + 5 * -0.3) / 8)
    plausibility = _knowing(*[-0.3] * ENOUGH)
    assert plausibility.plausible([plain, marked]) == [True, False]


def test_what_is_rewarded_is_so_within_its_group() -> None:
    assert [is_rewarded(reward, [0.2, 0.4, 0.9]) for reward in (0.2, 0.4, 0.9)] == [False, False, True]
    assert is_rewarded(1.0, [1.0, 1.0]) and not is_rewarded(0.0, [0.0, 0.0])


def test_the_fence_goes_with_the_policy() -> None:
    plausibility = _knowing(*[-0.3] * 600)
    before = plausibility.fence
    for _ in range(600):
        plausibility.learn([[-2.0]], [1.0])
    assert plausibility.fence < before - 1
