"""Number guessing: the smallest environment whose observations a policy must use to do well."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Literal

from pydantic import Field

from swarm.environments.config import Context, TaskName
from swarm.environments.digests import draw
from swarm.environments.episodes.source import EnvironmentTask
from swarm.protocols import Environment
from swarm.types import MAX_TURNS, Observation, StepReward, Terminal, Text

NUMBER = re.compile(r"[0-9]{1,9}")
DIGITS = 9
"""Decimals of the reward of a turn: logarithms differ in their last bits between systems, and nodes compare rewards."""


class NumberGuessingTask(EnvironmentTask):
    """Guess a hidden number; each guess is answered with higher or lower. Reward 1 for finding it, else 0.

    With halving, three turns always suffice for seven numbers; without using the answers they suffice for three.
    """

    kind: Literal["number_guessing"] = "number_guessing"
    name: TaskName = "number_guessing"
    """Name in this run."""
    max_turns: int = Field(3, ge=1, le=MAX_TURNS)
    """Guesses."""
    highest: int = Field(7, ge=2, le=10**6)
    """The numbers are 1 to this."""
    progress: float = Field(0.0, ge=0, le=1)
    """Part of the return that guesses earn by leaving fewer numbers, in proportion to the logarithm; see
    `update.credit`."""

    def environments(self, context: Context) -> Callable[[], Environment]:
        """See `EnvironmentTask`."""
        return lambda: NumberGuessing(self.highest, self.progress)


class NumberGuessing:
    """A hidden number from 1 to `highest`; each guess is answered with higher or lower. The return is 1 for finding it.

    The last number in a turn counts. `progress` is the part of the return that turns earn by leaving fewer numbers: a
    turn that leaves m of n earns progress x log(n / m) / log(highest), which adds up to `progress` at one number.
    """

    def __init__(self, highest: int, progress: float = 0.0) -> None:
        """Call `reset` first."""
        self._highest = highest
        self._progress = progress
        self._hidden = 0
        self._low, self._high = 1, highest

    def reset(self, seed: int, index: int) -> Observation:
        """Hide a number. See `Environment`."""
        self._hidden = 1 + draw(self._highest, "number_guessing", seed, index)
        self._low, self._high = 1, self._highest
        return (Text(f"Guess my number from 1 to {self._highest}."),)

    def step(self, action: str) -> Observation | Terminal:
        """Compare a guess. See `Environment`."""
        found = NUMBER.findall(action)
        if not found:
            return (Text("Guess a number."),)
        guess = int(found[-1])
        before = self._high - self._low + 1
        if guess == self._hidden:
            return Terminal(1 - self._progress + self._earned(before, 1))
        if guess < self._hidden:
            self._low = max(self._low, guess + 1)
        else:
            self._high = min(self._high, guess - 1)
        answer = Text("higher" if guess < self._hidden else "lower")
        earned = self._earned(before, self._high - self._low + 1)
        return (answer, StepReward(earned)) if earned else (answer,)

    def _earned(self, before: int, left: int) -> float:
        return round(self._progress * math.log(before / left) / math.log(self._highest), DIGITS)
