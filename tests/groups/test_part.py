"""Which completions of a group an update learns from when it does not take all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import pvariance

import numpy as np
import pytest

from swarm.groups.part import most_varied, only
from swarm.types import Completion, GradedGroup
from tests.example_groups import rollout_group


def _group(rewards: Sequence[float], texts: Sequence[str] | None = None) -> GradedGroup:
    texts = texts or [str(index) for index in range(len(rewards))]
    group = rollout_group(completions=tuple(Completion(text, "stop") for text in texts), rewards=tuple(rewards))
    return GradedGroup(group, "Calculate 1 + 7.", tuple(rewards), parts={"form": tuple(rewards)})


def test_no_other_part_has_a_larger_variance() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        rewards = [float(value) for value in rng.integers(0, 4, size=int(rng.integers(3, 9)))]
        count = int(rng.integers(2, len(rewards) + 1))
        found = most_varied(_group(rewards), count)
        assert len(found.rewards) == count
        best = max(pvariance(part) for part in combinations(rewards, count))
        assert pvariance(found.rewards) == pytest.approx(best)


def test_all_that_belongs_to_a_completion_stays_with_it() -> None:
    found = most_varied(_group([0.0, 0.0, 1.0, 0.0]), 2)
    texts = [completion.text for completion in found.group.completions]
    assert (texts, found.rewards, found.group.rewards) == (["0", "2"], (0.0, 1.0), (0.0, 1.0))
    assert found.parts == {"form": (0.0, 1.0)} and found.group.log_expectation is None


@pytest.mark.parametrize("flip", [False, True])
def test_of_equal_rewards_those_of_distinct_text_are_kept(flip: bool) -> None:
    rewards = [0.0, 0.0, 0.0, 0.0, 1.0]
    found = most_varied(_group([1 - each if flip else each for each in rewards], ["a", "a", "a", "b", "c"]), 3)
    assert sorted(completion.text for completion in found.group.completions) == ["a", "b", "c"]


@pytest.mark.parametrize("count", [None, 3, 8])
def test_a_group_that_has_no_more_is_left_whole(count: int | None) -> None:
    group = _group([0.0, 1.0, 0.0])
    assert most_varied(group, count) is group


def test_factors_of_the_tokens_go_with_their_completions() -> None:
    graded = GradedGroup(_group([0.0, 1.0]).group, "", (0.0, 1.0), factors=((0.5,), (1.0,)))
    assert only(graded, [False, True]).factors == ((1.0,),)
