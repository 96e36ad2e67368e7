"""The objectives by name."""

from __future__ import annotations

from swarm.algorithms.losses.base import ClippedLoss, Loss, LossBatch, LossOutput
from swarm.kinds import Kinds

__all__ = ["LOSSES", "ClippedLoss", "Loss", "LossBatch", "LossOutput"]

LOSSES: Kinds[type[Loss]] = Kinds(
    "loss",
    "swarm.losses",
    "swarm.algorithms.losses:Loss",
    {
        "grpo": "swarm.algorithms.losses.grpo:Grpo",
        "dapo": "swarm.algorithms.losses.dapo:Dapo",
        "dr_grpo": "swarm.algorithms.losses.dr_grpo:DrGrpo",
        "gspo": "swarm.algorithms.losses.gspo:Gspo",
        "gepo": "swarm.algorithms.losses.gepo:Gepo",
        "tis": "swarm.algorithms.losses.tis:Tis",
    },
)
