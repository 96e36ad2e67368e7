"""Results of swarms with given rewards."""

from __future__ import annotations

from swarm.telemetry.benefit.comparison import NodeOutcome, SwarmOutcome
from swarm.telemetry.records import GroupCounts


def node(rewards: list[float], name: str = "peer-1", accuracy: float | None = 0.5, **counts: int) -> NodeOutcome:
    groups = GroupCounts(
        generated=8 * len(rewards),
        shared=0,
        received=0,
        used_local=counts.get("used_local", 0),
        used_external=counts.get("used_external", 0),
        dropped={},
        local={"zero_advantage": 5, "not_sampled": counts.get("not_sampled", 0)},
        reused_external=counts.get("reused", 0),
    )
    return NodeOutcome(name, rewards, groups, counts.get("tokens", 100), 0.1, accuracy)


def swarm(row: str, seed: int, *totals: float) -> SwarmOutcome:
    """One node for each total, reached in ten equal rounds."""
    return SwarmOutcome(row, seed, [node([total / 10] * 10, f"peer-{k + 1}") for k, total in enumerate(totals)], 1.0)
