"""Number guessing: the smallest environment whose observations a policy must use to do well."""

from __future__ import annotations

import re

from swarm.environments.digests import draw
from swarm.types import End, Observation, Text

NUMBER = re.compile(r"[0-9]{1,9}")


class NumberGuessing:
    """A hidden number from 1 to `highest`; each guess is answered with higher or lower. The return is 1 for finding it.

    The last number in a turn counts.
    """

    def __init__(self, highest: int) -> None:
        """Call `reset` first."""
        self._highest = highest
        self._hidden = 0

    def reset(self, seed: int, index: int) -> Observation:
        """Hide a number. See `Environment`."""
        self._hidden = 1 + draw(self._highest, "number_guessing", seed, index)
        return (Text(f"Guess my number from 1 to {self._highest}."),)

    def step(self, action: str) -> Observation | End:
        """Compare a guess. See `Environment`."""
        found = NUMBER.findall(action)
        if not found:
            return (Text("Guess a number."),)
        guess = int(found[-1])
        if guess == self._hidden:
            return End(1.0)
        return (Text("higher" if guess < self._hidden else "lower"),)
