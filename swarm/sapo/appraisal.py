"""What this node's policy makes of received groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, compress
from statistics import fmean
from typing import Protocol

from msgspec.structs import replace

from swarm.groups.credit import Credit, raised
from swarm.groups.signal import has_signal
from swarm.sapo.mixing import Candidate
from swarm.types import GradedGroup

LogProbs = list[list[list[float]]]
"""[G][turns][T]"""


class Scorer(Protocol):
    """What an appraisal needs of an updater."""

    def advantages(self, rewards: Sequence[float]) -> Sequence[float]:
        """See `Updater`."""
        ...

    def logprobs(self, groups: Sequence[GradedGroup]) -> list[LogProbs]:
        """See `Updater`."""
        ...


class Fence(Protocol):
    """What an appraisal needs of `Plausibility`."""

    def plausible(self, raised: Sequence[Sequence[float]]) -> list[bool]:
        """See `Plausibility`."""
        ...


class Appraisal:
    """Received groups in one round: each is scored at most once, by the policy that the update will change."""

    def __init__(self, updater: Scorer, plausibility: Fence, credit: Credit = "episode") -> None:
        """Nothing is scored yet; `credit` as in the settings of updates."""
        self._updater = updater
        self._plausibility = plausibility
        self._credit = credit
        self._logprobs: dict[str, LogProbs] = {}

    def advantages(self, rewards: Sequence[float]) -> tuple[float, ...]:
        """[G] as an update computes them."""
        return tuple(self._updater.advantages(rewards))

    def screen(self, candidates: Sequence[Candidate]) -> list[GradedGroup | None]:
        """The groups without their implausible completions; None for those that then have no signal."""
        return [self._kept(candidate.graded, logprobs)[0] for candidate, logprobs in self._scored(candidates)]

    def surprisals(self, candidates: Sequence[Candidate]) -> list[float | None]:
        """Mean negative log-probability of the tokens that each group would raise, in nats, over its completions.

        0 without any; None for groups that the screen refuses.
        """
        return [self._surprisal(candidate.graded, logprobs) for candidate, logprobs in self._scored(candidates)]

    def _scored(self, candidates: Sequence[Candidate]) -> list[tuple[Candidate, LogProbs]]:
        new = [candidate for candidate in candidates if candidate.content_id not in self._logprobs]
        if new:
            scored = self._updater.logprobs([candidate.graded for candidate in new])
            self._logprobs.update(zip((candidate.content_id for candidate in new), scored, strict=True))
        return [(candidate, self._logprobs[candidate.content_id]) for candidate in candidates]

    def _kept(self, graded: GradedGroup, logprobs: LogProbs) -> tuple[GradedGroup | None, LogProbs]:
        """The part of a group to learn from, with its log-probabilities."""
        # Again, as long as any are left out: without them the group's mean is lower, and other completions exceed it.
        while not all(plausible := self._plausibility.plausible(self._raised(graded, logprobs))):
            graded, logprobs = _only(graded, plausible), list(compress(logprobs, plausible))
            if not has_signal(graded.rewards):
                return None, []
        return graded, logprobs

    def _raised(self, graded: GradedGroup, logprobs: LogProbs) -> list[list[float]]:
        """[G][T] those of the tokens that an update would raise."""
        flags = raised(graded, self._updater.advantages, self._credit)
        return [list(chain.from_iterable(compress(turns, each))) for turns, each in zip(logprobs, flags, strict=True)]

    def _surprisal(self, graded: GradedGroup, logprobs: LogProbs) -> float | None:
        kept, logprobs = self._kept(graded, logprobs)
        if kept is None:
            return None
        found = [-fmean(tokens) for tokens in self._raised(kept, logprobs) if tokens]
        return fmean(found) if found else 0.0


def _only(graded: GradedGroup, wanted: Sequence[bool]) -> GradedGroup:
    """The group with only these completions; its sampler's expectation is then unknown."""
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
    )
