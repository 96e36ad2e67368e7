"""Nodes with tasks of their own."""

from __future__ import annotations

from swarm.environments.tiny import TINY_TASKS

OTHERS_TASKS = 1e-6
"""Weight of the tasks that a specialist can grade but does not ask."""


def specialty(place: int, num_specialties: int) -> list[object]:
    """The embedded policy's tasks as node `place` configures them: it asks those of one specialty."""
    return [
        {**task.model_dump(mode="json"), "weight": 1.0 if (k - place) % num_specialties == 0 else OTHERS_TASKS}
        for k, task in enumerate(TINY_TASKS)
    ]
