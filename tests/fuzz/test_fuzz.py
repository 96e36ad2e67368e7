"""Every reader of foreign bytes, on its corpus and on some hundred mutations: no defect, little memory, little time."""

from __future__ import annotations

import random
import time
import tracemalloc

import pytest

from tests.fuzz.corpus import of_target
from tests.fuzz.mutations import mutated
from tests.fuzz.targets import Target, targets

NUM_INPUTS = 150
MAX_BYTES = 24 * 2**20
"""For one input, with what the reader imports and caches at its first."""
MAX_S = 2.0
"""For one input; the longest question to make included."""
TRACED_EVERY = 5


def timed(target: Target, content: bytes) -> tuple[float, float]:
    """Seconds of this thread, whatever else the machine does, and how many are allowed."""
    seconds = seconds_of(target, content)
    # On a core that others share, the same work takes longer at times.
    return seconds if seconds < MAX_S else min(seconds, seconds_of(target, content)), MAX_S


def seconds_of(target: Target, content: bytes) -> float:
    began = time.thread_time()
    target(content)
    return time.thread_time() - began


def traced(target: Target, content: bytes) -> tuple[float, float]:
    """Bytes of memory at the worst moment, and how many are allowed. Tracing takes several times as long."""
    tracemalloc.start()
    try:
        target(content)
        return tracemalloc.get_traced_memory()[1], MAX_BYTES
    finally:
        tracemalloc.stop()


def shortened(content: bytes) -> str:
    return repr(content) if len(content) < 500 else f"{content[:300]!r} ... {content[-200:]!r}"


@pytest.mark.parametrize("name", list(targets()))
def test_nothing_but_a_refusal_comes_of_any_input(name: str) -> None:
    target, chance = targets()[name], random.Random(name)
    known = [*target.seeds, *of_target(name)]
    for content in known:
        target(content)
    for number in range(NUM_INPUTS):
        content = mutated(chance.choice(known), chance)
        measured = traced if number % TRACED_EVERY == 0 else timed
        try:
            used, most = measured(target, content)
        except Exception as error:
            raise AssertionError(f"{name} on {shortened(content)}: {error!r:.300}") from error
        assert used < most, f"{name} on {shortened(content)}"


def test_every_seed_is_taken_or_refused_in_words() -> None:
    """A seed that its reader refuses teaches a fuzzer nothing; those of answers may be wrong ones."""
    refused = []
    for name, target in targets().items():
        for seed in target.seeds:
            try:
                target.run(seed)
            except target.refusals as error:
                refused.append((name, str(error)))
    assert refused == []
