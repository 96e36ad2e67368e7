"""The learning rate of each update."""

from __future__ import annotations

import math

from swarm.training.config import UpdateSettings


def learning_rate(settings: UpdateSettings, update: int) -> float:
    """Learning rate of the `update`-th update, counted from 0: a linear rise over `warmup_updates`, then the schedule.

    A falling schedule is at `final_learning_rate` from update `total_updates` on.
    """
    rising = (update + 1) / max(1, settings.warmup_updates)
    if rising < 1 or settings.total_updates is None:
        return settings.learning_rate * min(1.0, rising)
    span = settings.total_updates - settings.warmup_updates
    progress = min(1.0, max(0.0, (update - settings.warmup_updates) / span))
    remaining = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}
    fall = settings.learning_rate - settings.final_learning_rate
    return settings.final_learning_rate + fall * remaining[settings.schedule]
