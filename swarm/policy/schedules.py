"""The learning rate of each update."""

from __future__ import annotations

from swarm.policy.config import UpdateSettings


def learning_rate(settings: UpdateSettings, update: int) -> float:
    """Learning rate of the `update`-th update, counted from 0: a linear rise over `warmup_updates`, then constant."""
    return settings.learning_rate * min(1.0, (update + 1) / max(1, settings.warmup_updates))
