"""Every reader of foreign bytes, on its corpus and on some hundred mutations: no defect, little memory, little time."""

from __future__ import annotations

import random
import time
import tracemalloc

import pytest

from tests.fuzz.corpus import of_target
from tests.fuzz.mutations import mutated
from tests.fuzz.targets import targets

NUM_INPUTS = 150
MAX_BYTES = 24 * 2**20
"""Of memory for one input, with what the reader imports and caches at its first."""
MAX_S = 2.0
"""Of this thread's own time for one input, whatever else the machine does; the longest question to make included."""


def shortened(content: bytes) -> str:
    return repr(content) if len(content) < 500 else f"{content[:300]!r} ... {content[-200:]!r}"


@pytest.mark.parametrize("name", list(targets()))
def test_nothing_but_a_refusal_comes_of_any_input(name: str) -> None:
    target, chance = targets()[name], random.Random(name)
    known = [*target.seeds, *of_target(name)]
    for content in known:
        target(content)
    tracemalloc.start()
    try:
        for _ in range(NUM_INPUTS):
            content = mutated(chance.choice(known), chance)
            tracemalloc.reset_peak()
            before, began = tracemalloc.get_traced_memory()[0], time.thread_time()
            try:
                target(content)
            except Exception as error:
                raise AssertionError(f"{name} on {shortened(content)}: {error!r:.300}") from error
            assert time.thread_time() - began < MAX_S, shortened(content)
            assert tracemalloc.get_traced_memory()[1] - before < MAX_BYTES, shortened(content)
    finally:
        tracemalloc.stop()


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
