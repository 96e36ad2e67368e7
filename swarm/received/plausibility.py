"""Detects completions of other peers that an update would raise and that lie far outside this policy's distribution.

Bad completions are often improbable, rewarded ones rarely: a policy finds nearly all of its own probable, and those of
honest peers too, because they use the format that it knows. A planted marker in front of a right answer stands out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import quantiles

import numpy as np
from pydantic import Field

from swarm.settings import Settings

WINDOW_TOKENS = 8
KEPT = 512
ENOUGH = 8
WIDEST_NATS = 4.0
"""Per token that the fence may lie below the median, however far own completions differ: those without a reward, which
count where few have one, differ so much that any text would be plausible."""


class PlausibilitySettings(Settings):
    """Which rewarded completions of other peers are left out."""

    fence: float = Field(3.0, ge=0)
    """Take the mean log-probability of a completion's least probable 8 consecutive tokens. The completion is left out
    when this value lies below the lower quartile of own rewarded completions by more than `fence` interquartile ranges,
    and below their median by more than `slack_nats`; and always when it lies below that by more than 4 nats and by
    more than `slack_nats`."""
    slack_nats: float = Field(1.0, ge=0)
    """Difference per token that honest peers' policies may have."""


class Plausibility:
    """Compares completions of other peers with the probability of recent own rewarded completions."""

    def __init__(self, settings: PlausibilitySettings) -> None:
        """Every completion is plausible until enough own ones are known."""
        self._settings = settings
        self._own: deque[float] = deque(maxlen=KEPT)
        self._rewarded: deque[float] = deque(maxlen=KEPT)
        self._fence: float | None = None
        """None: not computed since the last own group."""

    def learn(self, completions: Iterable[Sequence[float]], rewards: Sequence[float]) -> None:
        """Add an own group: log-probabilities [G][T] at sampling, rewards [G]."""
        self._fence = None
        for logprobs, reward in zip(completions, rewards, strict=True):
            if logprobs:
                self._own.append(least_probable(logprobs))
                if is_rewarded(reward, rewards):
                    self._rewarded.append(self._own[-1])

    @property
    def fence(self) -> float:
        """Nats per token below which a rewarded completion is left out.

        With too few rewarded own completions, all own completions are the reference.
        """
        if self._fence is None:
            self._fence = self._computed()
        return self._fence

    def _computed(self) -> float:
        own = self._rewarded if len(self._rewarded) >= ENOUGH else self._own
        if len(own) < ENOUGH:
            return -math.inf
        low, median, high = quantiles(own, n=4, method="inclusive")
        distance = max(median - low + self._settings.fence * (high - low), self._settings.slack_nats)
        return median - min(distance, max(WIDEST_NATS, self._settings.slack_nats))

    def plausible(self, raised: Sequence[Sequence[float]]) -> list[bool]:
        """Whether each completion of a received group is plausible, by this policy's log-probabilities of the tokens
        that an update would raise, [G][T]; one without any is."""
        fence = self.fence
        return [not logprobs or least_probable(logprobs) >= fence for logprobs in raised]


def is_rewarded(reward: float, rewards: Sequence[float]) -> bool:
    """Whether a completion's reward is positive and at least its group's mean."""
    return reward > 0 and reward >= sum(rewards) / len(rewards)


def least_probable(logprobs: Sequence[float]) -> float:
    """Mean log-probability of the least probable window of tokens: a short anomaly in a long text counts, too."""
    if len(logprobs) <= WINDOW_TOKENS:
        return sum(logprobs) / len(logprobs)
    sums = np.cumsum([0.0, *logprobs])
    return float((sums[WINDOW_TOKENS:] - sums[:-WINDOW_TOKENS]).min() / WINDOW_TOKENS)
