"""Samples tokens: one uniform number per token that depends only on its completion and position."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from swarm.errors import SamplingError
from swarm.policy.scoring import keep_likely
from swarm.types import Sampling

# SplitMix64, as in Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014. Its unsigned
# numbers are signed here, of the same bits: torch cannot multiply unsigned ones.
GAMMA = 0x9E3779B97F4A7C15 - 2**64
MIX = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)

BLOCK = 512
"""Tokens of a large vocabulary whose probabilities are added first, and then block by block: adding one by one in
float64 takes longer than all else."""
LARGE = 8 * BLOCK
CACHED_LOGITS = 2**19
"""Logits that a CPU samples from at a time."""

Integers = TypeVar("Integers", NDArray[np.int64], Tensor)


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
    return _bits(as_signed(seeds), np.array(positions, dtype=np.int64)).astype(np.float64) * 2.0**-53


def uniforms_on_device(seeds: Tensor, positions: Tensor) -> Tensor:
    """`uniforms` of tensors: `as_signed` seeds [B] and positions [B]; returns [B] in float64 on their device."""
    return _bits(seeds, positions).double() * 2.0**-53


def as_signed(seeds: Sequence[int]) -> NDArray[np.int64]:
    """Unsigned 64-bit numbers [B], reinterpreted as signed."""
    return np.array(seeds, dtype=np.uint64).view(np.int64)


def _bits(seeds: Integers, positions: Integers) -> Integers:
    """The 53 highest bits of SplitMix64 with these seeds at these positions. Products wrap around."""
    state = seeds + (positions + 1) * GAMMA
    state = (state ^ _shifted(state, 30)) * MIX[0]
    state = (state ^ _shifted(state, 27)) * MIX[1]
    return _shifted(state ^ _shifted(state, 31), 11)


def _shifted(numbers: Integers, bits: int) -> Integers:
    """Logical shift to the right."""
    shifted: Integers = (numbers >> bits) & (2 ** (64 - bits) - 1)
    return shifted


def sample(logits: Tensor, sampling: Sampling, uniform: NDArray[np.float64] | Tensor) -> tuple[Tensor, Tensor]:
    """One token per row of logits [B, V]: ids [B], and their log-probabilities [B] under the sampled distribution.

    Tokens are drawn by inverting the distribution function at `uniform` [B]; filters act in the order temperature,
    top-k, top-p, min-p.
    """
    numbers = torch.as_tensor(uniform).to(logits.device, _wide(logits.device))
    # A CPU's cache holds only a few rows of a large vocabulary: chunks are several times faster.
    num_rows = max(1, CACHED_LOGITS // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    drawn = [
        _draw(*part, sampling)
        for part in zip(torch.split(logits, num_rows), torch.split(numbers, num_rows), strict=True)
    ]
    return torch.cat([tokens for tokens, _ in drawn]), torch.cat([logprobs for _, logprobs in drawn])


def _draw(logits: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    scaled = _in_blocks(logits)
    if sampling.temperature != 1:
        scaled = scaled / sampling.temperature
    probabilities = keep_likely(scaled, sampling).softmax(dim=-1)
    if probabilities.shape[-1] <= LARGE:
        tokens = _index_at(probabilities.cumsum(dim=-1, dtype=uniform.dtype), uniform[:, None])
    else:
        blocks = probabilities.view(len(probabilities), -1, BLOCK)
        sums = blocks.sum(dim=-1, dtype=uniform.dtype)
        cumulative = sums.cumsum(dim=-1)
        index = _index_at(cumulative, uniform[:, None])
        into = uniform[:, None] * cumulative[:, -1:] - (cumulative - sums).gather(-1, index)
        block = blocks.gather(1, index[..., None].expand(-1, -1, BLOCK))[:, 0].cumsum(dim=-1, dtype=uniform.dtype)
        tokens = index * BLOCK + _index_at(block, (into / sums.gather(-1, index)).clamp_(0, 1))
    return tokens[:, 0], probabilities.gather(-1, tokens)[:, 0].log()


def _index_at(cumulative: Tensor, uniform: Tensor) -> Tensor:
    """Index [B, 1] at which cumulative weights [B, N] exceed `uniform` [B, 1] of their total; never one of weight 0."""
    below_one = 1 - torch.finfo(uniform.dtype).eps  # rounding must not reach the total, otherwise no index is found
    target = uniform * cumulative[:, -1:] * below_one
    return torch.searchsorted(cumulative, target, right=True).clamp_(max=cumulative.shape[-1] - 1)


def _in_blocks(logits: Tensor) -> Tensor:
    """Logits [B, V] as float32 [B, N]; a large V is padded to whole blocks with impossible tokens."""
    num = logits.shape[-1]
    if num <= LARGE or num % BLOCK == 0:
        return logits.float()
    padded = logits.new_full((len(logits), -(-num // BLOCK) * BLOCK), -torch.inf, dtype=torch.float32)
    padded[:, :num] = logits
    return padded


def _wide(device: torch.device) -> torch.dtype:
    """In a float32 sum, a large vocabulary's unlikely tokens would vanish."""
    return torch.float32 if device.type == "mps" else torch.float64
