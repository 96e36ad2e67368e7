"""Measures how long each stage of a task takes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator


class Stopwatch:
    """Seconds spent in each stage; a stage may run several times."""

    def __init__(self, stages: Iterable[str] = (), clock: Callable[[], float] = time.perf_counter) -> None:
        """`stages` start at 0 s; other stages appear when they are first timed."""
        self.seconds = dict.fromkeys(stages, 0.0)
        self._clock = clock

    @contextlib.contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time the body of the `with` statement."""
        started = self._clock()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + self._clock() - started
