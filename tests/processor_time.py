"""Processor time of this thread in tests, robust to other processes and to threads of earlier tests."""

from __future__ import annotations

import time
from collections.abc import Callable


def least_s(work: Callable[[], object], tries: int = 3) -> float:
    """The least seconds of a few tries: noise only adds."""
    seconds = []
    for _ in range(tries):
        began = time.thread_time()
        work()
        seconds.append(time.thread_time() - began)
    return min(seconds)


def grows_linearly(work: Callable[[int], object], length: int) -> bool:
    """Whether four times the length takes nearer to 4 than to 16 times the seconds."""
    return least_s(lambda: work(4 * length)) < 8 * least_s(lambda: work(length)) + 0.2
