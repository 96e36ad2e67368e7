"""Detects that others' groups lower this node's reward; it then pauses their use and resumes gradually.

    reward of own, fresh questions ──▶ mean of the last rounds ──▶ far below the best, with others in the updates?
                                                                             │ alarm
    share 1 ◀── rises over `return_rounds` ◀── share 0 for `rest_rounds` ◀───┘  weights of the last good checkpoint

Own questions are new each round, so that their reward is a free held-out measure.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from statistics import fmean, pvariance

from msgspec import Struct
from pydantic import Field

from swarm.settings import Settings

LONGEST_REST = 8
"""Rests double with each alarm soon after another, up to this multiple of the first."""


GROWN = 1.25
"""Ratio of an author's part of the external groups since the reward was best to that before, above which it counts as
responsible for a fall."""


class WatchSettings(Settings):
    """When a node stops learning from others, and for how long."""

    window_rounds: int = Field(40, ge=2)
    """Rewards are compared as means over this many rounds."""
    drop: float = Field(0.3, gt=0, le=1)
    """Fraction of the best mean so far whose loss raises an alarm; 1: never."""
    sigmas: float = Field(6.0, gt=0)
    """Standard errors by which the two means must differ."""
    min_share: float = Field(0.1, ge=0, le=1)
    """Others' fraction of the window's groups below which no alarm is raised."""
    rest_rounds: int = Field(100, ge=1)
    """Rounds without others' groups after an alarm; doubled when the next alarm follows soon."""
    return_rounds: int = Field(200, ge=1)
    """Rounds over which others' share then rises back to 1."""


class Alarm(Struct, frozen=True):
    """Others' groups lowered the reward, or brought a habit that earns none."""

    before: float
    """Mean reward at its best."""
    after: float
    """Mean reward of the last rounds."""
    senders: tuple[str, ...]
    """Those that are held responsible, the most frequent first."""
    rest_rounds: int
    tokens: tuple[int, ...] = ()
    """What own completions have taken up from the sender without need; empty: the reward fell."""


class WatchState(Struct):
    """What a checkpoint keeps of the watch."""

    rewards: list[float]
    parts: list[tuple[int, tuple[str, ...]]]
    best: float
    variance: float
    round: int
    returns_at: int | None
    rest: int


class RewardGuard:
    """Rewards of rounds and the authors in their updates. Pure: time is counted in rounds."""

    def __init__(self, settings: WatchSettings) -> None:
        self._settings = settings
        self._rewards: deque[float] = deque(maxlen=2 * settings.window_rounds)
        self._parts: deque[tuple[int, tuple[str, ...]]] = deque(maxlen=2 * settings.window_rounds)
        """Local groups, and the authors of the external ones, of each round."""
        self._best, self._variance = 0.0, 0.0
        """Mean of the best window and its variance: the latest window's alone would be too small if it is low by
        chance."""
        self._round = 0
        self._returns_at: int | None = None
        """Round at which others' share starts to rise after the latest alarm."""
        self._rest = settings.rest_rounds
        self.num_alarms = 0
        self._highest = 0.0
        self.is_best = False
        """Whether the mean of the last window is the highest that this object has seen."""

    @property
    def share(self) -> float:
        """Fraction of the J external groups that an update may use now, in [0, 1]."""
        if self._returns_at is None:
            return 1.0
        return min(1.0, max(0.0, (self._round - self._returns_at) / self._settings.return_rounds))

    @property
    def well(self) -> bool:
        """Whether the current policy is good enough to roll back to later."""
        mean = self._mean()
        return mean is not None and mean >= (1 - self._settings.drop / 2) * self._best

    def observe(self, reward: float, num_local: int, authors: Sequence[str]) -> Alarm | None:
        """Add a round: the mean reward of its own completions, and the authors of its external groups."""
        self._round += 1
        self._rewards.append(reward)
        self._parts.append((num_local, tuple(authors)))
        window = self._settings.window_rounds
        if len(self._rewards) == 2 * window:
            earlier = list(self._rewards)[:window]
            self._best, self._variance = max((self._best, self._variance), (fmean(earlier), pvariance(earlier)))
        mean = self._mean()
        self.is_best = mean is not None and mean > self._highest
        if mean is not None and self.is_best:
            self._highest = mean
        if mean is None or not self._has_fallen(mean) or self._others_part() < self._settings.min_share:
            return None
        return self._alarm(mean)

    def dump(self) -> WatchState:
        """Everything, for a checkpoint: otherwise a restart would end a rest."""
        return WatchState(
            rewards=list(self._rewards),
            parts=list(self._parts),
            best=self._best,
            variance=self._variance,
            round=self._round,
            returns_at=self._returns_at,
            rest=self._rest,
        )

    def restore(self, saved: WatchState) -> None:
        """Restore what `dump` returned."""
        self._rewards.extend(saved.rewards)
        self._parts.extend(saved.parts)
        self._best, self._variance = saved.best, saved.variance
        self._round, self._returns_at, self._rest = saved.round, saved.returns_at, saved.rest

    def _mean(self) -> float | None:
        """Mean over the last window; None before the first whole one."""
        window = self._settings.window_rounds
        return fmean(list(self._rewards)[-window:]) if len(self._rewards) >= window else None

    def _has_fallen(self, mean: float) -> bool:
        window = self._settings.window_rounds
        error = math.sqrt((self._variance + pvariance(list(self._rewards)[-window:])) / window)
        lost = self._best - mean
        return lost > self._settings.drop * self._best and lost > self._settings.sigmas * error

    def _others_part(self) -> float:
        external = sum(len(authors) for _, authors in self._parts)
        return external / max(1, external + sum(num_local for num_local, _ in self._parts))

    def _alarm(self, mean: float) -> Alarm:
        soon = self._returns_at is not None and self._round - self._returns_at < 2 * self._settings.return_rounds
        first = self._settings.rest_rounds
        self._rest = min(2 * self._rest, LONGEST_REST * first) if soon else first
        self._returns_at = self._round + self._rest
        alarm = Alarm(self._best, mean, self._responsible(), self._rest)
        # Start a new baseline: otherwise a reward that never recovers would raise alarms forever.
        self._rewards.clear()
        self._parts.clear()
        self._best, self._variance = 0.0, 0.0
        self.num_alarms += 1
        return alarm

    def _responsible(self) -> tuple[str, ...]:
        """Authors with a larger part of the updates since the reward was best than before, the most frequent first;
        all of them if none has: it is then unknown who did it."""
        window = self._settings.window_rounds
        parts = list(self._parts)
        before, since = (
            Counter(author for _, authors in part for author in authors) for part in (parts[:-window], parts[-window:])
        )
        grown = [
            author
            for author, count in since.most_common()
            if count * before.total() > GROWN * before[author] * since.total()
        ]
        return tuple(grown or (author for author, _ in since.most_common()))
