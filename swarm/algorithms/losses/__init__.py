"""The objectives by the name they are chosen with."""

from __future__ import annotations

from swarm.algorithms.losses.base import Groups, Loss, LossConfig, LossOutput
from swarm.algorithms.losses.dapo import dapo
from swarm.algorithms.losses.dr_grpo import dr_grpo
from swarm.algorithms.losses.gepo import gepo
from swarm.algorithms.losses.grpo import grpo
from swarm.algorithms.losses.gspo import gspo
from swarm.algorithms.losses.tis import tis
from swarm.algorithms.names import LossName

__all__ = ["LOSSES", "Groups", "Loss", "LossConfig", "LossOutput"]

LOSSES: dict[LossName, Loss] = {
    "grpo": grpo,
    "dapo": dapo,
    "dr_grpo": dr_grpo,
    "gspo": gspo,
    "gepo": gepo,
    "tis": tis,
}
