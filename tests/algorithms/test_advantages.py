from __future__ import annotations

import statistics
from itertools import product

import pytest
import torch
from hypothesis import given, strategies as st

from swarm.algorithms import advantages
from tests.algorithms import loops


def test_grpo_by_hand() -> None:
    # mean 1/4, deviations 3/4 and three times -1/4, variance (9/16 + 3/16) / 3 = 1/4
    result = advantages.grpo(torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64))
    assert result.tolist()[0] == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=16))
def test_grpo_agrees_with_the_statistics_module(rewards: list[float]) -> None:
    mean, std = statistics.fmean(rewards), statistics.stdev(rewards)
    result = advantages.grpo(torch.tensor([rewards], dtype=torch.float64))[0]
    assert result.tolist() == pytest.approx([(r - mean) / (std + 1e-6) for r in rewards], rel=1e-9, abs=1e-9)


def test_a_group_without_differences_has_no_advantage() -> None:
    assert advantages.grpo(torch.ones(1, 8)).abs().max() == 0


def test_a_group_of_one_has_advantage_zero_not_nan() -> None:
    assert advantages.grpo(torch.tensor([[1.0]])).tolist() == [[0.0]]


def test_groups_do_not_mix() -> None:
    rewards = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    assert advantages.grpo(rewards)[1].tolist() == [0.0, 0.0]


def test_without_the_standard_deviation_and_with_the_others_as_baseline() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    assert advantages.dr_grpo(rewards).tolist() == [[0.75, -0.25, -0.25, -0.25]]
    assert advantages.rloo(rewards).tolist()[0] == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    for advantage in advantages.ADVANTAGES.values():
        assert advantage(torch.tensor([[1.0]])).tolist() == [[0.0]]


@pytest.mark.parametrize("name", advantages.ADVANTAGES)
@given(st.lists(st.floats(0, 1).map(lambda reward: round(reward, 3)), min_size=2, max_size=16))
def test_every_advantage_agrees_with_loops(name: str, rewards: list[float]) -> None:
    result = advantages.find_advantage(name)(torch.tensor([rewards], dtype=torch.float64))[0]
    assert result.tolist() == pytest.approx(loops.advantages(name, rewards), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_maxrls_expected_gradient_is_that_of_the_truncated_log_likelihood(p: float) -> None:
    """Over all outcomes of a group of G, of a policy that is right with probability p = sigmoid(x)."""
    size, slope = 5, p * (1 - p)
    expected = sum((1 - p) ** k for k in range(size - 1)) * slope  # the derivative of -sum (1 - p)^k / k, k < G
    found = 0.0
    for outcome in product((0.0, 1.0), repeat=size):
        weights = advantages.maxrl(torch.tensor([outcome], dtype=torch.float64))[0].tolist()
        scores = [1 - p if right else -p for right in outcome]
        chance = p ** sum(outcome) * (1 - p) ** (size - sum(outcome))
        found += chance * sum(w * s for w, s in zip(weights, scores, strict=True)) / size
    assert found == pytest.approx(expected, rel=1e-12)


def test_gdpo_tells_apart_what_a_sum_makes_equal() -> None:
    # Right, well-formed; right, not; wrong, well-formed; wrong, not. Two weights of 1.
    right, form = [1.0, 1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0, 0.0]
    total = torch.tensor([[(r + f) / 2 for r, f in zip(right, form, strict=True)]], dtype=torch.float64)
    each = advantages.gdpo(torch.tensor([right, form], dtype=torch.float64)).tolist()
    assert each == [pytest.approx(loops.advantages("grpo", values)) for values in (right, form)]
    assert advantages.weighted_advantages(each, [3.0, 1.0]) == pytest.approx(
        [(3 * r + f) / 4 for r, f in zip(*each, strict=True)]
    )
    # A reward that is nearly always given moves the sum little and its own advantage fully.
    rare = [1.0, 1.0, 1.0, 1.0, 0.9]
    mixed = advantages.weighted_advantages(advantages.gdpo(torch.tensor([right, rare])).tolist(), [1.0, 1.0])
    together = advantages.grpo((torch.tensor([right]) + torch.tensor([rare])) / 2)[0]
    assert mixed[4] < together[4].item() - 0.3
    assert advantages.grpo(total)[0][1].item() == advantages.grpo(total)[0][2].item()
