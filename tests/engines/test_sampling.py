from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList, MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from swarm.engines.sampling import as_signed, check_sampling, completion_seed, sample, uniforms, uniforms_on_device
from swarm.errors import SamplingError
from swarm.policy.scoring import keep_likely
from swarm.types import Sampling


def _draws(count: int, seed: int = 0) -> np.ndarray:
    return uniforms([completion_seed(seed, 0, 0)] * count, range(count))


def test_uniforms_are_those_of_splitmix64() -> None:
    # The generator's first outputs for the seed 0, as published with its reference implementation.
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert uniforms([0, 0, 0], [0, 1, 2]).tolist() == [(number >> 11) / 2**53 for number in published]


def test_uniforms_depend_on_seed_and_position_alone() -> None:
    seeds = [completion_seed(1, q, c) for q in range(4) for c in range(4)]
    assert len(set(seeds)) == 16
    alone = [uniforms([seed], [position])[0] for position, seed in enumerate(seeds)]
    assert uniforms(seeds, range(16)).tolist() == alone


def test_uniforms_of_a_device_are_those_of_the_host() -> None:
    seeds = [0, 1, 2**63, 2**64 - 1, *(completion_seed(3, q, 0) for q in range(500))]
    positions = [0, 1, 2**31, 7, *range(500)]
    found = uniforms_on_device(torch.from_numpy(as_signed(seeds)), torch.tensor(positions))
    assert found.tolist() == uniforms(seeds, positions).tolist()


def test_uniforms_are_uniform_along_positions_and_across_seeds() -> None:
    across = uniforms([completion_seed(0, q, 0) for q in range(20_000)], [0] * 20_000)
    for numbers in (_draws(20_000), across):
        counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
        chi_square = float(((counts - 1_000) ** 2 / 1_000).sum())
        assert chi_square < 43.8, "0.1% of uniform samples exceed this at 19 degrees of freedom"
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_sampling_follows_the_distribution() -> None:
    logits = torch.log(torch.tensor([[0.6, 0.3, 0.1]])).repeat(20_000, 1)
    tokens, logprobs = sample(logits, Sampling(), _draws(20_000))
    frequencies = torch.bincount(tokens, minlength=3) / len(tokens)
    torch.testing.assert_close(frequencies, torch.tensor([0.6, 0.3, 0.1]), atol=0.015, rtol=0)
    torch.testing.assert_close(logprobs.exp(), torch.tensor([0.6, 0.3, 0.1])[tokens], atol=1e-6, rtol=0)


def test_the_largest_uniform_number_finds_a_token_that_has_probability() -> None:
    logits = torch.randn(1, 50_000)
    logits[:, -10:] = -torch.inf
    for number in (0.0, 1 - 2.0**-53):
        token, logprob = sample(logits, Sampling(), np.array([number]))
        assert token < 49_990 and math.isfinite(logprob)


@pytest.mark.parametrize("vocabulary", [300, 4_096, 4_097, 8_192, 50_001])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7, top_k=40), Sampling(top_p=0.3)])
def test_tokens_are_those_at_which_one_sum_over_the_vocabulary_reaches_the_number(
    vocabulary: int, sampling: Sampling
) -> None:
    logits = 3 * torch.randn(64, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    numbers = _draws(64)
    kept = keep_likely(logits / sampling.temperature, sampling).double().softmax(dim=-1)
    expected = (kept.cumsum(dim=-1) > torch.from_numpy(numbers)[:, None]).int().argmax(dim=-1)
    tokens, logprobs = sample(logits, sampling, numbers)
    assert (tokens == expected).float().mean() >= 63 / 64, "float32 may round the other way at one border"
    torch.testing.assert_close(logprobs.double(), kept.gather(-1, tokens[:, None])[:, 0].log(), atol=3e-5, rtol=0)


def test_top_p_keeps_the_smallest_sufficient_set_and_reports_its_logprobs() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(5_000, 1)
    tokens, logprobs = sample(logits, Sampling(top_p=0.75), _draws(5_000))
    assert set(tokens.tolist()) == {0, 1}
    torch.testing.assert_close(logprobs.exp(), (torch.tensor([0.5, 0.3]) / 0.8)[tokens], atol=1e-6, rtol=0)


@pytest.mark.parametrize("top_k", [0, 1, 7])
@pytest.mark.parametrize("top_p", [1.0, 0.8, 0.05])
@pytest.mark.parametrize("min_p", [0.0, 0.2])
def test_filters_keep_what_those_of_transformers_keep(top_k: int, top_p: float, min_p: float) -> None:
    logits = 3 * torch.randn(40, 60, generator=torch.Generator().manual_seed(0))
    warpers = LogitsProcessorList([TopPLogitsWarper(top_p)])
    if top_k:
        warpers.insert(0, TopKLogitsWarper(top_k))
    if min_p:
        warpers.append(MinPLogitsWarper(min_p))
    expected = warpers(torch.zeros(40, 1, dtype=torch.long), logits)
    kept = keep_likely(logits, Sampling(top_k=top_k, top_p=top_p, min_p=min_p))
    assert torch.equal(kept, expected)


def test_logprobs_are_those_of_the_distribution_sampled_from() -> None:
    logits = torch.randn(200, 80, generator=torch.Generator().manual_seed(0))
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=30, min_p=0.02)
    tokens, logprobs = sample(logits, sampling, _draws(200))
    reference = torch.log_softmax(keep_likely(logits.double() / 0.7, sampling), dim=-1)
    torch.testing.assert_close(logprobs.double(), reference.gather(1, tokens[:, None])[:, 0], atol=3e-5, rtol=0)


@pytest.mark.parametrize(
    ("sampling", "name"),
    [
        (Sampling(temperature=0.0), "temperature"),
        (Sampling(temperature=math.nan), "temperature"),
        (Sampling(temperature=math.inf), "temperature"),
        (Sampling(top_p=0.0), "top_p"),
        (Sampling(top_p=1.5), "top_p"),
        (Sampling(top_k=-1), "top_k"),
        (Sampling(min_p=-0.1), "min_p"),
        (Sampling(max_new_tokens=0), "max_new_tokens"),
        (Sampling(stop=("",)), "stop"),
    ],
)
def test_impossible_settings_are_named(sampling: Sampling, name: str) -> None:
    with pytest.raises(SamplingError, match=f"^{name} must be .*, got"):
        check_sampling(sampling)
