"""The policy versions that sampled a group's tokens."""

from __future__ import annotations

from swarm.types import RolloutGroup


def oldest_version(group: RolloutGroup) -> int:
    """The version of the group's oldest token: it determines the group's staleness."""
    return min(_versions(group), default=group.policy.version)


def newest_version(group: RolloutGroup) -> int:
    """The version of the group's newest token."""
    return max(_versions(group), default=group.policy.version)


def _versions(group: RolloutGroup) -> list[int]:
    return [span.version for completion in group.completions for span in completion.versions]
