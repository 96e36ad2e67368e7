"""Whether a rewarded completion of another is one that this policy could learn from, or far outside of its own.

Bad completions are often improbable. Those that are rewarded are not: of its own, a policy finds nearly all probable,
and likewise those of honest others, who answer in the format it knows. A marker in front of a right answer stands out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from pydantic import Field

from swarm.settings import Settings

WINDOW_TOKENS = 8
KEPT = 512
ENOUGH = 8


class PlausibilitySettings(Settings):
    """Which rewarded completions of others are left out."""

    fence: float = Field(3.0, ge=0)
    """A completion is left out when the mean log-probability of its least probable 8 tokens in a row lies further below
    the lower quartile of own rewarded completions than this multiple of the distance between their quartiles, and more
    than `slack_nats` below their median."""
    slack_nats: float = Field(1.0, ge=0)
    """What the policies of honest others may differ by, a token."""


class Plausibility:
    """Knows how probable own rewarded completions were lately, and judges those of others by it."""

    def __init__(self, settings: PlausibilitySettings) -> None:
        """Everything is plausible until enough is known."""
        self._settings = settings
        self._own: deque[float] = deque(maxlen=KEPT)
        self._rewarded: deque[float] = deque(maxlen=KEPT)

    def learn(self, completions: Iterable[Sequence[float]], rewards: Sequence[float]) -> None:
        """Take in an own group: log-probabilities [G][T] at sampling, rewards [G]."""
        for logprobs, reward in zip(completions, rewards, strict=True):
            if logprobs:
                self._own.append(least_probable(logprobs))
                if is_rewarded(reward, rewards):
                    self._rewarded.append(self._own[-1])

    @property
    def fence(self) -> float:
        """Nats a token below which a rewarded completion is left out.

        While hardly any own completion has been rewarded, all of them are what others' are compared with.
        """
        own = self._rewarded if len(self._rewarded) >= ENOUGH else self._own
        if len(own) < ENOUGH:
            return -np.inf
        low, median, high = np.quantile(own, [0.25, 0.5, 0.75])
        return float(min(low - self._settings.fence * (high - low), median - self._settings.slack_nats))

    def plausible(self, completions: Sequence[Sequence[float]], rewards: Sequence[float]) -> list[bool]:
        """Of a group of another: this policy's log-probabilities [G][T] of its tokens, rewards [G]."""
        fence = self.fence
        return [
            not logprobs or not is_rewarded(reward, rewards) or least_probable(logprobs) >= fence
            for logprobs, reward in zip(completions, rewards, strict=True)
        ]


def is_rewarded(reward: float, rewards: Sequence[float]) -> bool:
    """Whether a completion is among the better ones of its group."""
    return reward > 0 and reward >= sum(rewards) / len(rewards)


def least_probable(logprobs: Sequence[float]) -> float:
    """Mean log-probability of the least probable tokens in a row: something short in a long text stands out, too."""
    sums = np.cumsum([0.0, *logprobs])
    width = min(WINDOW_TOKENS, len(logprobs))
    return float((sums[width:] - sums[:-width]).min() / width)
