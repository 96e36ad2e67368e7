"""The mixing policies by name."""

from __future__ import annotations

from swarm.sapo.mixing.base import MixPolicy
from swarm.sapo.mixing.policies.advantage import Advantage
from swarm.sapo.mixing.policies.auto import Auto
from swarm.sapo.mixing.policies.edge import Edge
from swarm.sapo.mixing.policies.fixed import Fixed
from swarm.sapo.mixing.policies.novelty import Novelty
from swarm.sapo.mixing.policies.positive import Positive
from swarm.sapo.mixing.policies.scarcity import Scarcity
from swarm.sapo.mixing.policies.scheduled import Scheduled
from swarm.sapo.mixing.policies.worth import Worth

__all__ = ["POLICIES"]

POLICIES: dict[str, type[MixPolicy]] = {
    "fixed": Fixed,
    "scheduled": Scheduled,
    "scarcity": Scarcity,
    "advantage": Advantage,
    "edge": Edge,
    "novelty": Novelty,
    "worth": Worth,
    "positive": Positive,
    "auto": Auto,
}
