"""Samples tokens: one uniform number per token that depends only on its completion and position."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from swarm.errors import SamplingError
from swarm.policy.scoring.filters import keep_likely
from swarm.types import Sampling

# SplitMix64, as in Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.
GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))

CACHED_LOGITS = 2**19
"""Logits that a CPU samples from at a time."""


def check_sampling(sampling: Sampling) -> None:
    """Raises `SamplingError` for settings that leave no token to sample."""
    rules = (
        (math.isfinite(sampling.temperature) and sampling.temperature > 0, "temperature", "above 0 (greedy: top_k 1)"),
        (0 < sampling.top_p <= 1, "top_p", "above 0 and at most 1"),
        (sampling.top_k >= 0, "top_k", "0 (all tokens) or more"),
        (0 <= sampling.min_p <= 1, "min_p", "from 0 to 1"),
        (sampling.max_new_tokens >= 1, "max_new_tokens", "at least 1"),
        (all(sampling.stop), "stop", "texts that are not empty"),
    )
    for holds, name, rule in rules:
        if not holds:
            raise SamplingError(f"{name} must be {rule}, got {getattr(sampling, name)!r}")


def completion_seed(seed: int, question: int, completion: int) -> int:
    """A 64-bit seed for one completion, unique within a call."""
    digest = hashlib.blake2b(f"{seed}/{question}/{completion}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """A number in [0, 1) for each (seed, position), [B]: a pure function of both."""
    with np.errstate(over="ignore"):
        state = np.array(seeds, dtype=np.uint64) + (np.array(positions, dtype=np.uint64) + np.uint64(1)) * GAMMA
        state = (state ^ (state >> np.uint64(30))) * MIX[0]
        state = (state ^ (state >> np.uint64(27))) * MIX[1]
        state ^= state >> np.uint64(31)
    numbers: NDArray[np.float64] = (state >> np.uint64(11)) * 2.0**-53
    return numbers


def sample(logits: Tensor, sampling: Sampling, uniform: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
    """One token per row of logits [B, V]: ids [B], and their log-probabilities [B] under the sampled distribution.

    Tokens are drawn by inverting the distribution function at `uniform` [B]; filters act in the order temperature,
    top-k, top-p, min-p.
    """
    # A CPU's cache holds only a few rows of a large vocabulary: chunks are several times faster.
    num_rows = max(1, CACHED_LOGITS // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    numbers = torch.from_numpy(uniform).to(logits.device, _wide(logits.device))
    drawn = [
        _draw(*part, sampling)
        for part in zip(torch.split(logits, num_rows), torch.split(numbers, num_rows), strict=True)
    ]
    return torch.cat([tokens for tokens, _ in drawn]), torch.cat([logprobs for _, logprobs in drawn])


def _draw(logits: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    probabilities = keep_likely(logits.float() / sampling.temperature, sampling).softmax(dim=-1)
    cumulative = probabilities.cumsum(dim=-1, dtype=uniform.dtype)
    below_one = 1 - torch.finfo(uniform.dtype).eps  # rounding must not reach the total, otherwise no token is found
    target = uniform * cumulative[:, -1] * below_one
    tokens = torch.searchsorted(cumulative, target[:, None], right=True).clamp(max=logits.shape[-1] - 1)
    return tokens[:, 0], probabilities.gather(-1, tokens)[:, 0].log()


def _wide(device: torch.device) -> torch.dtype:
    """In a float32 sum, a large vocabulary's unlikely tokens would vanish."""
    return torch.float32 if device.type == "mps" else torch.float64
