"""SAPO nodes from a flat list of what a test cares for."""

from __future__ import annotations

import time

from swarm.groups.building import Member
from swarm.received.pool import PoolSettings
from swarm.sapo.external import ExternalSettings
from swarm.sapo.rollouts import RolloutPlan
from swarm.sapo.round import Parts, SapoNode, SapoSettings
from swarm.types import PolicyId, Sampling

PLAN = ("max_staleness", "limit_s", "max_sequences", "batches_a_call")
EXTERNAL = ("mix", "pool", "plausibility", "corroboration", "watch", "credit", "trusted", "unreadable")
SETTINGS = ("share", "unshared")
PARTS = ("engine", "verifier", "updater", "exchange", "worth")


def make_node(peer_id: str, *, seed: int, questions: int, group_size: int, model: str = "fake", **known) -> SapoNode:
    """A node of these settings and parts; what is not named is as by default."""

    def some(names: tuple[str, ...]) -> dict[str, object]:
        return {name: known.pop(name) for name in names if name in known}

    settings = SapoSettings(
        rollouts=RolloutPlan(num_questions=questions, group_size=group_size, **some(PLAN)),
        external=ExternalSettings(
            **{"pool": PoolSettings(), **some(EXTERNAL)},
            max_group_size=known.pop("max_group_size", group_size),
            max_pending_per_peer=known.pop("max_pending_per_peer", 100),
        ),
        **some(SETTINGS),
    )
    parts = Parts(**some(PARTS))
    me = Member(peer_id, PolicyId(model, "", 0), Sampling(), seed, known.pop("clock", time.time))
    keep = known.pop("keep", lambda fate, group: None)
    assert not known, f"unknown: {known}"
    return SapoNode(settings, me, parts, keep)
