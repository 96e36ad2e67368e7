"""Groups for tests."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.types import Completion, GradedGroup, PolicyId, ProceduralRef, RolloutGroup, Sampling


def reference(index: int = 0) -> ProceduralRef:
    return ProceduralRef("gcd", "reasoning_gym==0.1.25", "digest", 1, index, "hash")


def rollout_group(peer_id: str = "peer", index: int = 0, texts: Sequence[str] = ("1", "2"), **changes) -> RolloutGroup:
    values = {
        "run_id": "",
        "peer_id": peer_id,
        "sequence": index,
        "created_at": 0.0,
        "policy": PolicyId("tiny", "", 0),
        "sampling": Sampling(),
        "question": reference(index),
        "completions": tuple(Completion(text, "stop") for text in texts),
        "rewards": tuple(0.0 for _ in texts),
    }
    return RolloutGroup(**{**values, **changes})


def graded(peer_id: str = "peer", index: int = 0, rewards: Sequence[float] = (1.0, 0.0), **changes) -> GradedGroup:
    texts = [str(k) for k in range(len(rewards))]
    group = rollout_group(peer_id, index, texts, **changes)
    return GradedGroup(group, f"question {index}", tuple(rewards))
