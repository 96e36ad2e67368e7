"""Planted candidates and histories for mixing policies."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from swarm.sapo.mixing import Candidate, History, MixRound
from swarm.types import GradedGroup, ReceivedGroup
from tests.example_groups import graded, reference


def candidate(
    name: str = "id", sender: str = "other", rewards: Sequence[float] = (1.0, 0.0), task: str = "gcd", **known
) -> Candidate:
    group = graded(sender, rewards=rewards, question=replace(reference(), task=task))
    uses = known.pop("uses", 0)
    return Candidate(ReceivedGroup(name, group, uses=uses), **known)


def own_round(number: int = 1, reward: float = 0.5, informative: int = 4, uninformative: int = 4, **known) -> MixRound:
    return MixRound(number, reward, informative, uninformative, **known)


def history(*rounds: MixRound, local: int = 4, external: int = 4, **state: float) -> History:
    return History(local, external, rounds or (own_round(),), state)


class Opinion:
    """An appraiser with planted surprisals; keeps what it was asked."""

    def __init__(self, surprisals: dict[str, float | None] | None = None, refused: str = "nobody") -> None:
        self.scored: list[str] = []
        self._surprisals = surprisals or {}
        self._refused = refused

    def advantages(self, rewards: Sequence[float]) -> tuple[float, ...]:
        mean = sum(rewards) / len(rewards)
        return tuple(reward - mean for reward in rewards)

    def surprisals(self, groups: Sequence[ReceivedGroup]) -> list[float | None]:
        self.scored += [each.content_id for each in groups]
        return [self._surprisals.get(each.content_id, 1.0) for each in groups]

    def screen(self, groups: Sequence[ReceivedGroup]) -> list[GradedGroup | None]:
        return [None if each.peer_id == self._refused else each.graded for each in groups]


def names(groups: Sequence[ReceivedGroup]) -> tuple[str, ...]:
    """Their content ids."""
    return tuple(group.content_id for group in groups)
