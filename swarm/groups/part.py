"""Parts of a group: some of its completions, which are again a group."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, groupby
from statistics import pvariance

from msgspec.structs import replace

from swarm.types import GradedGroup


def only(graded: GradedGroup, wanted: Sequence[bool]) -> GradedGroup:
    """The group with only the completions that are `wanted` [G]; its sampler's expectation is then unknown."""
    group = replace(
        graded.group,
        completions=tuple(compress(graded.group.completions, wanted)),
        rewards=tuple(compress(graded.group.rewards, wanted)),
        log_expectation=None,
    )
    return replace(
        graded,
        group=group,
        rewards=tuple(compress(graded.rewards, wanted)),
        observations=tuple(compress(graded.observations, wanted)),
        parts={name: tuple(compress(rewards, wanted)) for name, rewards in graded.parts.items()},
        factors=tuple(compress(graded.factors, wanted)),
        added=tuple(compress(graded.added, wanted)),
    )


def most_varied(graded: GradedGroup, count: int | None) -> GradedGroup:
    """The `count` completions whose rewards have the largest variance, of equal rewards rather those of distinct text;
    the whole group if it has no more, or without `count`.

    They are the lowest and the highest rewards. Advantages of the part are relative to the part's mean, so that they
    still sum to 0. The part is no random sample: it weighs the rarer rewards of the group more, and what is between the
    extremes not at all. Source: arXiv:2504.13818, section 3 (max-variance down-sampling).
    """
    if count is None or len(graded.rewards) <= count:
        return graded
    order = _by_reward(graded)
    chosen = max((_ends(order, low, count) for low in range(count, -1, -1)), key=lambda ends: _variety(graded, ends))
    return only(graded, [index in chosen for index in range(len(order))])


def _variety(graded: GradedGroup, part: Sequence[int]) -> tuple[float, int]:
    """Variance of the rewards, then distinct texts."""
    completions = graded.group.completions
    return pvariance(graded.rewards[index] for index in part), len({completions[index].text for index in part})


def _ends(order: Sequence[int], low: int, count: int) -> list[int]:
    """The first `low`, and from the end the others of `count`."""
    return [*order[:low], *order[len(order) - count + low :]]


def _by_reward(graded: GradedGroup) -> list[int]:
    """Completions by reward; repeated texts between the first ones of the lower and of the higher rewards."""
    completions, rewards = graded.group.completions, graded.rewards
    middle = (min(rewards) + max(rewards)) / 2
    order: list[int] = []
    for reward, alike in groupby(sorted(range(len(rewards)), key=rewards.__getitem__), key=rewards.__getitem__):
        first: dict[str, int] = {}
        again = [index for index in alike if first.setdefault(completions[index].text, index) != index]
        distinct = list(first.values())
        order += [*distinct, *again] if reward < middle else [*again, *distinct]
    return order
