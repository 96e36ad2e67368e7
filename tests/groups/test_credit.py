"""What the tokens of a completion are credited with."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from swarm.algorithms import advantages
from swarm.groups.credit import credited_turns, raised, turn_advantages
from swarm.types import Completion, GradedGroup, Observation, StepReward, Text, Turn
from tests.example_groups import graded, rollout_group


def test_a_turn_is_compared_with_the_same_turn_of_other_episodes() -> None:
    def centred(returns: Sequence[float]) -> list[float]:
        return advantages.dr_grpo(torch.tensor([returns], dtype=torch.float64))[0].tolist()

    rewards = [[0.25, 0.0, 0.75], [1.0], [0.25, 0.0]]
    found = turn_advantages(rewards, centred)
    mean = (1 + 1 + 0.25) / 3
    assert found == [
        pytest.approx([1 - mean, 0.375, 0.0]),
        pytest.approx([1 - mean]),
        pytest.approx([0.25 - mean, -0.375]),
    ]
    assert turn_advantages([], centred) == []


def test_one_reward_at_the_end_credits_all_turns_with_it() -> None:
    def normalised(returns: Sequence[float]) -> list[float]:
        return advantages.grpo(torch.tensor([returns], dtype=torch.float64))[0].tolist()

    outcomes = [1.0, 0.0, 0.0, 1.0]
    found = turn_advantages([[0.0, 0.0, outcome] for outcome in outcomes], normalised)
    assert [each[0] for each in found] == pytest.approx(normalised(outcomes))
    assert all(len(set(each)) == 1 for each in found)


def test_an_update_may_raise_a_turn_of_an_episode_whose_return_is_low() -> None:
    def centred(returns: Sequence[float]) -> list[float]:
        return advantages.dr_grpo(torch.tensor([returns], dtype=torch.float64))[0].tolist()

    def episode(first: float) -> tuple[Completion, tuple[Observation, ...]]:
        turns = (Turn(1, 0, "stop"), Turn(1, 0, "stop"))
        return Completion("ab", "stop", turns=turns), ((Text("go on"), StepReward(first)),)

    (one, shown), (other, also_shown) = episode(0.9), episode(0.0)
    group = rollout_group(completions=(one, other), rewards=(0.9, 0.3))
    paid = GradedGroup(group, "question", (0.9, 0.3), (shown, also_shown))
    assert raised(paid, centred, "episode") == [[True, True], [False, False]]
    assert credited_turns(paid, centred, "turn") == [pytest.approx([0.3, -0.15]), pytest.approx([-0.3, 0.15])]
    assert raised(paid, centred, "turn") == [[True, False], [False, True]]


def test_without_turns_completions_are_raised_by_their_advantage() -> None:
    def centred(rewards: Sequence[float]) -> list[float]:
        return [reward - sum(rewards) / len(rewards) for reward in rewards]

    rewards = (-1.0, -0.5, -0.75)
    for credit in ("episode", "turn"):
        assert raised(graded(rewards=rewards), centred, credit) == [[False], [True], [False]], "rewards may be negative"


def test_returns_that_differ_by_rounding_raise_nothing() -> None:
    turns = (Turn(1, 0, "stop"), Turn(1, 0, "stop"))
    completions = tuple(Completion("ab", "stop", turns=turns) for _ in range(4))
    first, rewards = (0.7, 0.7, 0.7, 0.1), (0.9, 0.9, 0.9, 0.3)
    shown = tuple(((Text("go on"), StepReward(each)),) for each in first)
    group = GradedGroup(rollout_group(completions=completions, rewards=rewards), "question", rewards, shown)

    def centred(returns: Sequence[float]) -> list[float]:
        return advantages.dr_grpo(torch.tensor([returns], dtype=torch.float64))[0].tolist()

    assert raised(group, centred, "turn") == [[True, False]] * 3 + [[False, False]]
