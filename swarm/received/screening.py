"""What this node's policy makes of received groups: reads each once, and keeps the part to learn from.

Only completions that an update would raise are computed: what the others push depends on their tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, compress
from statistics import fmean
from typing import Protocol

from msgspec.structs import replace

from swarm.groups.credit import Credit, advantages_by_turn, has_signal, raised
from swarm.groups.part import most_varied, only
from swarm.received.corroboration import Corroboration
from swarm.received.pushes import ReadGroup, Reading
from swarm.types import GradedGroup, ReadTurn, ReceivedGroup

Names = Callable[[str], Sequence[str]]
"""What a peer counts as: itself, and for a newcomer also the one that all newcomers are together."""


class Reader(Protocol):
    """What a scorer needs of an updater."""

    def advantages(self, rewards: Sequence[float]) -> Sequence[float]:
        """See `Updater`."""

    def read(self, groups: Sequence[GradedGroup], wanted: Sequence[Sequence[bool]] | None = None) -> Sequence[Reading]:
        """See `Updater`."""


class Fence(Protocol):
    """What a scorer needs of `Plausibility`."""

    def plausible(self, raised: Sequence[Sequence[float]]) -> list[bool]:
        """See `Plausibility`."""


class CandidateScorer:
    """Received groups in one round: each is read at most once, by the policy that the update will change."""

    def __init__(
        self,
        updater: Reader,
        plausibility: Fence,
        credit: Credit = "episode",
        corroboration: Corroboration | None = None,
        names: Names = lambda peer_id: (peer_id,),
        num_completions: int | None = None,
    ) -> None:
        """Nothing is read yet; `credit` as in the settings of updates.

        Of a group at most `num_completions` are read, those whose rewards vary most; None: all.
        """
        self._updater = updater
        self._plausibility = plausibility
        self._credit: Credit = credit
        self._corroboration = corroboration
        self._names = names
        self._num_completions = num_completions
        self._read: dict[str, tuple[GradedGroup, Reading]] = {}

    def advantages(self, rewards: Sequence[float]) -> tuple[float, ...]:
        """[G] as an update computes them."""
        return tuple(self._updater.advantages(rewards))

    def screen(self, groups: Sequence[ReceivedGroup]) -> list[GradedGroup | None]:
        """What to learn from each group: without its implausible completions, and with factors of its tokens'
        advantages; None for those that then have no signal."""
        found = [self._kept(*read) for read in self._readings(groups)]
        kept = [each for each in found if each is not None]
        factors = iter(self._corroborated(kept))
        return [None if each is None else replace(each[0], factors=next(factors)) for each in found]

    def surprisals(self, groups: Sequence[ReceivedGroup]) -> list[float | None]:
        """Mean negative log-probability of the tokens that each group would raise, in nats, over its completions.

        0 without any; None for groups that the screen refuses.
        """
        return [self._surprisal(*read) for read in self._readings(groups)]

    def _readings(self, groups: Sequence[ReceivedGroup]) -> list[tuple[GradedGroup, Reading]]:
        """The part of each group that an update would learn from, if it is plausible, as read."""
        new = [each for each in groups if each.content_id not in self._read]
        if new:
            parts = [most_varied(each.graded, self._num_completions) for each in new]
            wanted = [list(map(any, self._flags(each))) for each in parts]
            found = zip(parts, self._updater.read(parts, wanted), strict=True)
            self._read.update(zip((each.content_id for each in new), found, strict=True))
        return [self._read[each.content_id] for each in groups]

    def _corroborated(self, kept: Sequence[tuple[GradedGroup, Reading]]) -> list[tuple[tuple[float, ...], ...]]:
        """Factors [G][T] of each group's token advantages."""
        if self._corroboration is None:
            return [() for _ in kept]
        names = [self._names(graded.group.peer_id) for graded, _ in kept]
        groups = [read_group(*each, self._updater.advantages, self._credit) for each in kept]
        return self._corroboration.credited(names, groups)

    def _kept(self, graded: GradedGroup, reading: Reading) -> tuple[GradedGroup, Reading] | None:
        """The part of a group to learn from, as read."""
        # Again, as long as any are left out: without them the group's mean is lower, and other completions exceed it.
        while not all(plausible := self._plausibility.plausible(self._raised(graded, reading))):
            graded, reading = only(graded, plausible), list(compress(reading, plausible))
            if not has_signal(graded.rewards):
                return None
            reading = self._completed(graded, reading)
        return graded, reading

    def _completed(self, graded: GradedGroup, reading: Reading) -> Reading:
        """The reading with log-probabilities of what exceeds the group's mean only now."""
        raised = map(any, self._flags(graded))
        missing = [
            flag and any(turn.ids and not turn.logprobs for turn in turns)
            for flag, turns in zip(raised, reading, strict=True)
        ]
        if not any(missing):
            return reading
        (found,) = self._updater.read([graded], [missing])
        return [new if flag else old for new, old, flag in zip(found, reading, missing, strict=True)]

    def _flags(self, graded: GradedGroup) -> list[list[bool]]:
        """[G][turns] whether an update would raise the tokens."""
        return raised(graded, self._updater.advantages, self._credit)

    def _raised(self, graded: GradedGroup, reading: Reading) -> list[list[float]]:
        """[G][T] log-probabilities of the tokens that an update would raise."""
        return [
            list(chain.from_iterable(turn.logprobs for turn in compress(turns, each)))
            for turns, each in zip(reading, self._flags(graded), strict=True)
        ]

    def _surprisal(self, graded: GradedGroup, reading: Reading) -> float | None:
        kept = self._kept(graded, reading)
        if kept is None:
            return None
        found = [-fmean(tokens) for tokens in self._raised(*kept) if tokens]
        return fmean(found) if found else 0.0


def read_group(
    graded: GradedGroup, reading: Reading, advantages: Callable[[Sequence[float]], Sequence[float]], credit: Credit
) -> ReadGroup:
    """A group's tokens with their advantages."""
    return ReadGroup(graded.group.question.task, reading, advantages_by_turn(graded, advantages, credit))


def own_reading(graded: GradedGroup) -> Reading:
    """An own group, as it was sampled."""
    return [
        [ReadTurn(turn.token_ids, turn.logprobs) for turn in completion.by_turn()]
        for completion in graded.group.completions
    ]
