"""The objectives by name."""

from __future__ import annotations

from swarm.algorithms.losses.base import ClippedLoss, Loss, LossBatch, LossOutput
from swarm.algorithms.losses.dapo import Dapo
from swarm.algorithms.losses.dr_grpo import DrGrpo
from swarm.algorithms.losses.gepo import Gepo
from swarm.algorithms.losses.grpo import Grpo
from swarm.algorithms.losses.gspo import Gspo
from swarm.algorithms.losses.tis import Tis

__all__ = ["LOSSES", "ClippedLoss", "Loss", "LossBatch", "LossOutput"]

LOSSES: dict[str, type[Loss]] = {
    "grpo": Grpo,
    "dapo": Dapo,
    "dr_grpo": DrGrpo,
    "gspo": Gspo,
    "gepo": Gepo,
    "tis": Tis,
}
