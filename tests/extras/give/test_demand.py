"""How many groups a giver gives, and of which tasks."""

from __future__ import annotations

import pytest

from swarm.extras.give.demand import EXPLORED, LEAST, LEAST_PART, TaskDemand, groups_wanted


@pytest.mark.parametrize(
    ("uses", "given", "wanted"),
    [
        ([], 100, EXPLORED),
        ([0], 16, LEAST),
        ([10], 13, 13),  # of 13 given 10 are used: as many again
        ([16], 16, 32),  # all are used
        ([100], 16, 32),  # more than were given
        ([10, 0, 0], 12, 13),
        ([90, 0, 0], 100, EXPLORED),
        ([90, 20, 10, 0], 100, EXPLORED + 30),
    ],
)
def test_groups_are_given_at_the_rate_at_which_they_are_used(uses: list[int], given: int, wanted: int) -> None:
    assert groups_wanted(uses, given) == wanted


def test_the_rate_settles_at_the_demand() -> None:
    """A receiver that uses up to 40 groups between two answers, the newest first."""
    given, used, rates = EXPLORED, 0, []
    for _ in range(30):
        used = min(40, given)
        given = groups_wanted([used], given)
        rates.append(given)
    assert 40 <= sum(rates[10:]) / len(rates[10:]) <= 1.25 * 40


def test_tasks_are_asked_in_proportion_to_what_they_teach() -> None:
    demand, tasks = TaskDemand(), ("easy", "half", "unknown")
    assert {demand.part(each, tasks) for each in tasks} == {1.0}
    demand.heard([{"easy": 0.2, "half": 1.0}, {"easy": 0.2, "half": 0.9}, {"easy": 1.0, "half": 0.0}])
    assert demand.part("half", tasks) == 1
    assert demand.part("easy", tasks) == pytest.approx(0.2 / 0.9)
    assert demand.part("unknown", tasks) == pytest.approx(0.55 / 0.9)
    demand.heard([{"easy": 0.0, "half": 1.0}])
    assert demand.part("easy", tasks) == LEAST_PART, "it may be wanted later"


def test_a_task_whose_groups_have_no_signal_here_is_asked_less() -> None:
    demand = TaskDemand()
    for _ in range(20):
        demand.answered("solved", has_signal=False)
        demand.answered("learned", has_signal=True)
    assert demand.part("learned", ("solved", "learned")) == 1
    assert demand.part("solved", ("solved", "learned")) == LEAST_PART
