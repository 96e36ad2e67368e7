"""The rewards of an update's groups by worker: what a learner can know of its policy without asking it anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from swarm.protocols import NEWCOMERS
from swarm.sapo.mixing import AuthorOf, authors_of
from swarm.types import GradedGroup


def rewards_by_worker(groups: Sequence[GradedGroup], author_of: AuthorOf) -> dict[str, float]:
    """Mean reward of each author's groups; newcomers only where there is nobody else."""
    authors = authors_of((graded.group.peer_id for graded in groups), author_of)
    rewards: dict[str, list[float]] = {}
    for graded in groups:
        author = authors[graded.group.peer_id]
        if author != NEWCOMERS:
            rewards.setdefault(author, []).append(fmean(graded.rewards))
    return {author: fmean(means) for author, means in rewards.items()}


def upper_median(values: Iterable[float]) -> float:
    """It falls only if more than half of the values do."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
