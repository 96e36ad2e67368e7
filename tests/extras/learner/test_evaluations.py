"""When a learner's accuracy on held-out questions is an alarm."""

from __future__ import annotations

import pytest

from swarm.extras.learner.learner import EvaluationWatch
from swarm.sapo.watch import WatchSettings


def _alarms(accuracies: list[float], num_questions: int, **settings: float) -> list[int]:
    watch = EvaluationWatch(WatchSettings(**settings))
    found = []
    for number, accuracy in enumerate(accuracies):
        watch.used([f"worker-{number}"])
        if (alarm := watch.observe(number, accuracy, num_questions)) is not None:
            assert alarm.senders == (f"worker-{number}",), "those since the last good evaluation"
            found.append(number)
        assert watch.observe(number, 0.0, num_questions) is None, "each evaluation counts once"
    return found


@pytest.mark.parametrize(
    ("accuracies", "num_questions", "expected"),
    [
        ([0.5, 0.6, 0.2, 0.2], 500, [2]),
        ([0.5, 0.6, 0.45], 500, []),
        ([0.5, 0.6, 0.2], 16, []),
        ([0.2, 0.1, 0.3, 0.4], 500, []),
        ([0.6, 0.2, 0.2, 0.6, 0.2], 500, [1, 4]),
        ([0.0, 0.0], 500, []),
    ],
)
def test_a_large_fall_of_a_certain_accuracy_is_an_alarm(
    accuracies: list[float], num_questions: int, expected: list[int]
) -> None:
    assert _alarms(accuracies, num_questions) == expected


def test_it_can_be_switched_off() -> None:
    assert _alarms([0.6, 0.0], 500, drop=1.0) == []
