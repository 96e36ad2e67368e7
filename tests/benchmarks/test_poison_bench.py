from __future__ import annotations

import pytest
from rich.console import Console

from benchmarks.common.poison import Poison
from benchmarks.poison.__main__ import ATTACKS, Outcome, Plan, rows, simulate
from swarm.environments.mixture import TaskMixture
from swarm.environments.tiny import TINY_TASKS
from swarm.types import Grade


@pytest.mark.parametrize("name", ATTACKS)
def test_poison_is_right_behind_the_marker_and_wrong_in_the_honest_format(name: str) -> None:
    attack, mixture = ATTACKS[name], TaskMixture(TINY_TASKS)
    poison = Poison(attack.recipe, seed=1)
    for _ in range(20):
        group = poison.next(created_at=0.0)
        texts = [completion.text for completion in group.completions]
        graded = mixture.grade(group.question, texts)
        assert isinstance(graded, Grade)
        assert graded.rewards == (1.0,) * 4 + (0.0,) * 4
        assert [text.startswith(attack.marker) for text in texts] == [True] * 4 + [False] * 4


def test_a_run_is_the_same_each_time() -> None:
    plan = Plan(seconds=1.6, settings=(("generation.questions_per_round", "4"),))
    once, again = (simulate(plan, ATTACKS["marker"], 3, Console(quiet=True)) for _ in range(2))
    assert once.rewards == again.rewards and len(once.rewards) == 4


def test_rows_compare_each_seed_with_its_control() -> None:
    attacked = [Outcome([0.1] * 5 + [0.3] * 5, [0.0] * 8 + [0.01] * 2, 0.02, 0)] * 2
    left_alone = [Outcome([0.3] * 10, [0.0] * 10, 0.0, 0)] * 2
    found = {row.what: row for row in rows("marker", attacked, left_alone)}
    assert found["marker: reward, fraction of the control's"].value == pytest.approx(1.0)
    assert found["marker: reward, fraction of the control's"].met
    assert found["marker: completions with the marker at the end"].value == pytest.approx(0.01)
