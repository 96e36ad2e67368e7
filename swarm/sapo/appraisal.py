"""What this node's policy makes of received groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from statistics import fmean

from msgspec.structs import replace

from swarm.groups.plausibility import Plausibility, is_rewarded
from swarm.groups.signal import has_signal
from swarm.protocols import Updater
from swarm.sapo.mixing import Candidate
from swarm.types import GradedGroup

LogProbs = list[list[float]]
"""[G][T]"""


class Appraisal:
    """Received groups in one round: each is scored at most once, by the policy that the update will change."""

    def __init__(self, updater: Updater, plausibility: Plausibility) -> None:
        """Nothing is scored yet."""
        self._updater = updater
        self._plausibility = plausibility
        self._logprobs: dict[str, LogProbs] = {}

    def advantages(self, rewards: Sequence[float]) -> tuple[float, ...]:
        """[G] as an update computes them."""
        return tuple(self._updater.advantages(rewards))

    def screen(self, candidates: Sequence[Candidate]) -> list[GradedGroup | None]:
        """The groups without their implausible completions; None for those that then have no signal."""
        return [
            self._kept(candidate.graded, self._plausible(candidate.graded, logprobs))
            for candidate, logprobs in zip(candidates, self._scores(candidates), strict=True)
        ]

    def surprisals(self, candidates: Sequence[Candidate]) -> list[float | None]:
        """Mean negative log-probability of each group's plausible rewarded completions, nats per token.

        None for groups that the screen refuses, or that have no such completion.
        """
        return [
            self._surprisal(candidate.graded, logprobs)
            for candidate, logprobs in zip(candidates, self._scores(candidates), strict=True)
        ]

    def _scores(self, candidates: Sequence[Candidate]) -> list[LogProbs]:
        new = [candidate for candidate in candidates if candidate.content_id not in self._logprobs]
        if new:
            scored = self._updater.logprobs([candidate.graded for candidate in new])
            self._logprobs.update(zip((candidate.content_id for candidate in new), scored, strict=True))
        return [self._logprobs[candidate.content_id] for candidate in candidates]

    def _plausible(self, graded: GradedGroup, logprobs: LogProbs) -> list[bool]:
        return self._plausibility.plausible(logprobs, graded.rewards)

    def _kept(self, graded: GradedGroup, plausible: Sequence[bool]) -> GradedGroup | None:
        kept = graded if all(plausible) else _only(graded, plausible)
        return kept if all(plausible) or has_signal(kept.rewards) else None

    def _surprisal(self, graded: GradedGroup, logprobs: LogProbs) -> float | None:
        plausible = self._plausible(graded, logprobs)
        if self._kept(graded, plausible) is None:
            return None
        rewarded = [
            -fmean(tokens)
            for tokens, reward in compress(zip(logprobs, graded.rewards, strict=True), plausible)
            if tokens and is_rewarded(reward, graded.rewards)
        ]
        return fmean(rewarded) if rewarded else None


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
