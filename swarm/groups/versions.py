"""The policy versions that a group's tokens were sampled by."""

from __future__ import annotations

from swarm.types import RolloutGroup


def oldest_version(group: RolloutGroup) -> int:
    """The version of the group's stalest token: its age decides whether the group may still teach."""
    return min(_versions(group), default=group.policy.version)


def newest_version(group: RolloutGroup) -> int:
    """The version of the group's freshest token."""
    return max(_versions(group), default=group.policy.version)


def _versions(group: RolloutGroup) -> list[int]:
    return [span.version for completion in group.completions for span in completion.versions]
