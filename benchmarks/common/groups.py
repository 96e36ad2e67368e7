"""Rollout groups of a given size."""

from __future__ import annotations

import base64
import random
import time
from functools import lru_cache

from swarm.net.records.identity import Identity
from swarm.net.records.wire import SealedManifest, make_run_id, seal, seal_manifest
from swarm.types import Completion, PolicyId, ProceduralRef, RolloutGroup, RunManifest, Sampling

NUM_COMPLETIONS = 8
MAX_CHARS = 2**20
"""Characters of a completion; larger groups have more completions."""
MAX_RECORD_BYTES = 64 * 2**20
"""The limits of the benchmark's run: the largest allowed."""


def benchmark_manifest(founder: Identity) -> SealedManifest:
    """A run without tasks."""
    run_id = make_run_id("benchmark", founder.peer_id)
    manifest = RunManifest(run_id, founder.peer_id, time.time(), (), 4, 1, 1, MAX_RECORD_BYTES, MAX_CHARS)
    return SealedManifest(seal_manifest(founder, manifest), manifest)


def make_group(sequence: int, num_chars: int) -> RolloutGroup:
    """A group whose completions have `num_chars` characters in total, which compress only to three quarters."""
    source = random.Random(sequence)
    num_completions = max(NUM_COMPLETIONS, -(-num_chars // MAX_CHARS))
    each = num_chars // num_completions
    texts = [base64.b64encode(source.randbytes(each * 3 // 4 + 3)).decode()[:each] for _ in range(num_completions)]
    return RolloutGroup(
        run_id="",
        peer_id="",
        sequence=sequence,
        created_at=time.time(),
        policy=PolicyId("tiny", "benchmark", 0),
        sampling=Sampling(),
        question=ProceduralRef("gcd", "benchmark", "benchmark", 0, sequence, "benchmark"),
        completions=tuple(Completion(text, "stop") for text in texts),
        rewards=tuple(float(index % 2) for index in range(num_completions)),
    )


@lru_cache
def chars_for(size_bytes: int) -> int:
    """Characters of a sealed group of at most and about `size_bytes` bytes."""
    identity = Identity.generate()
    num_chars = size_bytes
    for _ in range(4):
        sealed = len(seal(identity, "benchmark-" + 20 * "0", "group", make_group(0, num_chars)))
        # Groups of the same length differ by a few bytes after compression.
        num_chars = max(0, int(num_chars + (0.99 * size_bytes - sealed) * num_chars / max(1, sealed)))
    return num_chars
