from __future__ import annotations

import pytest

from swarm.figures import values
from swarm.groups.rollout_figures import rollout_figures
from swarm.types import Completion, GradedGroup
from tests.example_groups import rollout_group


def test_rollouts_are_described_by_hand_counted_figures() -> None:
    assert rollout_figures([]) == {}
    completions = (Completion("a", "stop", (1, 2)), Completion("b", "length", (1, 2, 3, 4)))
    mixed = GradedGroup(rollout_group(completions=completions, rewards=(1.0, 0.0)), "?", (1.0, 0.0))
    equal = GradedGroup(rollout_group(completions=completions, rewards=(1.0, 1.0)), "?", (1.0, 1.0))
    assert values(rollout_figures([mixed, equal])) == {
        "reward/std": pytest.approx(0.25),
        "frac_reward_zero_std": 0.5,
        "completions/mean_length": 3.0,
        "completions/max_length": 4.0,
        "completions/clipped_ratio": 0.5,
    }
