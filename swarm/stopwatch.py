"""How long the stages of something took."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator


class Stopwatch:
    """Seconds spent in each stage, which may come and go."""

    def __init__(self, stages: Iterable[str] = (), clock: Callable[[], float] = time.perf_counter) -> None:
        """Nothing was timed yet; `stages` are those that have 0 s until they come."""
        self.seconds = dict.fromkeys(stages, 0.0)
        self._clock = clock

    @contextlib.contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time what happens within."""
        started = self._clock()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + self._clock() - started
