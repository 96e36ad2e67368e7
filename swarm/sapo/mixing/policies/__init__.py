"""The mixing policies by name."""

from __future__ import annotations

from swarm.kinds import Kinds
from swarm.sapo.mixing.base import MixPolicy

__all__ = ["POLICIES"]

POLICIES: Kinds[type[MixPolicy]] = Kinds(
    "mixing policy",
    "swarm.mixes",
    "swarm.sapo.mixing:MixPolicy",
    {
        "fixed": "swarm.sapo.mixing.policies.fixed:Fixed",
        "scheduled": "swarm.sapo.mixing.policies.scheduled:Scheduled",
        "scarcity": "swarm.sapo.mixing.policies.scarcity:Scarcity",
        "advantage": "swarm.sapo.mixing.policies.advantage:Advantage",
        "edge": "swarm.sapo.mixing.policies.edge:Edge",
        "novelty": "swarm.sapo.mixing.policies.novelty:Novelty",
        "worth": "swarm.sapo.mixing.policies.worth:Worth",
        "positive": "swarm.sapo.mixing.policies.positive:Positive",
        "auto": "swarm.sapo.mixing.policies.auto:Auto",
    },
)
