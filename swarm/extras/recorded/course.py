"""The supervised steps before a node's first round: which demonstrations each learns from, and lines about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from swarm.errors import ConfigError
from swarm.extras.recorded.reading import read
from swarm.files import at_home
from swarm.training.config import DemonstrationSettings
from swarm.training.imitation import Demonstration, Imitation

NUM_LINES = 10
"""Lines about the steps."""


class Course:
    """All steps in their order, which depends on the seed alone: a resumed node goes on where it was."""

    def __init__(
        self,
        demonstrations: Sequence[Demonstration],
        settings: DemonstrationSettings,
        seed: int,
        note: Callable[[str, str], None],
        begun: int = 0,
    ) -> None:
        """`note` takes a line for people and its level; `begun` steps were taken before a restart."""
        self._begun = begun
        self._demonstrations = demonstrations
        self._settings = settings
        self._seed = seed
        self._note = note
        self._per_epoch = math.ceil(len(demonstrations) / settings.batch)
        self.num_steps = min(settings.max_steps, settings.epochs * self._per_epoch)
        self._num_too_long = 0
        self._first: float | None = None

    @classmethod
    def of(cls, settings: DemonstrationSettings, seed: int, note: Callable[[str, str], None], begun: int = 0) -> Self:
        """That of the file in the settings. Raises `ConfigError`."""
        assert settings.path is not None
        found = read(at_home(settings.path), settings.min_reward)
        if found.passed_over:
            text = f"{len(found.passed_over)} of {found.num_rows} rows of {settings.path} are passed over; "
            note(text + found.passed_over[0], "warning")
        course = cls(found.demonstrations, settings, seed, note, begun)
        note(
            f"learning from {len(found.demonstrations)} demonstrations in {settings.path} before the first round: "
            f"{_steps(course.num_steps)} of {min(settings.batch, len(found.demonstrations))}",
            "info",
        )
        return course

    def batch(self, step: int) -> list[Demonstration]:
        """The demonstrations of a step, from 0: each once in an epoch."""
        epoch, place = divmod(step, self._per_epoch)
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._demonstrations))
        first = place * self._settings.batch
        return [self._demonstrations[int(index)] for index in order[first : first + self._settings.batch]]

    def taken(self, step: int, done: Imitation) -> None:
        """A step was taken; says so now and then. Raises `ConfigError` if the model has room for none at all."""
        self._num_too_long += done.num_too_long
        if done.num_tokens and self._first is None:
            self._first = done.loss
        last = step + 1 == self.num_steps
        if last and self._first is None and not self._begun:
            raise ConfigError(f"demonstrations.path: the model has no room for those in {self._settings.path}")
        if last:
            long = f"; {self._num_too_long} were too long for the model" if self._num_too_long else ""
            first = "" if self._begun else f"{self._first:.3f} in the first step, "
            text = f"learned from demonstrations in {_steps(self.num_steps)}: loss {first}"
            self._note(f"{text}{done.loss:.3f} in the last{long}", "info")
        elif step % max(1, self.num_steps // NUM_LINES) == 0:
            self._note(f"demonstrations: step {step + 1} of {self.num_steps}, loss {done.loss:.3f}", "info")


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"
