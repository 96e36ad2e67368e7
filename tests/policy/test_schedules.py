from __future__ import annotations

import pytest
from pydantic import ValidationError

from swarm.training.config import UpdateSettings
from swarm.training.optimizers import learning_rate


def _rates(**settings: object) -> list[float]:
    config = UpdateSettings(learning_rate=1.0, **settings)
    return [learning_rate(config, update) for update in range(7)]


def test_warm_up_rises_linearly_to_the_full_rate() -> None:
    assert _rates() == [1.0] * 7
    assert _rates(warmup_updates=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0]


def test_linear_falls_to_the_final_rate_and_stays() -> None:
    rates = _rates(schedule="linear", total_updates=5, warmup_updates=1, final_learning_rate=0.2)
    assert rates == pytest.approx([1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_cosine_is_half_way_down_in_the_middle() -> None:
    rates = _rates(schedule="cosine", total_updates=4)
    assert rates == pytest.approx([1.0, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2, 0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": "linear"},
        {"schedule": "cosine", "total_updates": 3, "warmup_updates": 3},
        {"schedule": "linear", "total_updates": 9, "learning_rate": 1e-3, "final_learning_rate": 1e-2},
    ],
)
def test_a_schedule_that_cannot_be_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        UpdateSettings(**settings)
