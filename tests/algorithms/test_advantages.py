from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import given, strategies as st

from swarm.algorithms import advantages


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
