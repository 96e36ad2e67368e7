"""The test that completions were sampled: against policies whose distributions are known exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from swarm.extras.learner.audit import BOUND, DOUBT, FIRST_GROUPS, POWERS, SamplingTest

VOCABULARY = 100
TOKENS = 24
GROUP = 8
REWARDS = (1.0, 1.0, 1.0) + (0.0,) * 5
Array = NDArray[np.float64]


class Sampler:
    """Samples from random distributions, flat and peaked ones."""

    def __init__(self, seed: int, temperature: float = 1.0, noise: float = 0.0) -> None:
        """`temperature` is not what it says; `noise` is what its kernels add to logits, in nats."""
        self._rng = np.random.default_rng(seed)
        self._temperature = temperature
        self._noise = noise

    def completion(self, begin: Sequence[int] = ()) -> Array:
        """Its reading. `begin`: ranks of its first tokens, from the least probable, that are written, not sampled."""
        peaks = self._rng.choice([1.0, 3.0, 6.0, 10.0], size=(TOKENS, 1))
        scores = _normalized(peaks * self._rng.normal(size=(TOKENS, VOCABULARY)))
        noisy = scores / self._temperature + self._noise * self._rng.normal(size=scores.shape)
        tokens = (noisy + self._rng.gumbel(size=scores.shape)).argmax(axis=1)
        for place, rank in enumerate(begin):
            tokens[place] = np.argsort(scores[place])[rank]
        return _reading(scores, tokens)

    def group(self, marked: int = 0, begin: Sequence[int] = (10, 10, 10)) -> list[Array]:
        """Of which the first ones begin with what is written."""
        return [self.completion(begin if number < marked else ()) for number in range(GROUP)]


def _normalized(scores: Array) -> Array:
    return scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)


def _reading(scores: Array, tokens: NDArray[np.int64]) -> Array:
    chosen = scores[np.arange(len(tokens)), tokens]
    return np.stack([chosen, *(np.logaddexp.reduce(power * scores, axis=1) for power in POWERS)])


def _groups_until_found(make: Callable[[], list[Array]], most: int = 200, tries: float = 1.5) -> int | None:
    test = SamplingTest(TOKENS)
    return next((n for n in range(1, most + 1) if not test.passes("worker", make(), REWARDS, tries)), None)


def _most(test: SamplingTest, author: str = "worker") -> float:
    return float(test._authors[author].sums.max())


@pytest.mark.parametrize(("temperature", "noise"), [(1.0, 0.0), (1.0, 0.05), (1.0, 0.3), (1.03, 0.05), (0.97, 0.05)])
def test_samples_pass_with_the_noise_of_other_kernels_and_weights(temperature: float, noise: float) -> None:
    test, sampler = SamplingTest(TOKENS), Sampler(0, temperature, noise)
    for _ in range(120):
        assert test.passes("worker", sampler.group(), REWARDS)
        assert _most(test) < BOUND / 2


@pytest.mark.parametrize("rarity", [0.3, 0.02, 0.003])
def test_samples_pass_however_rare_and_improbable_what_is_rewarded_is(rarity: float) -> None:
    """Each completion is rewarded for its first token: whatever has signal contains an improbable one."""
    rng = np.random.default_rng(0)
    first = _normalized(np.log([[rarity, *[(1 - rarity) / 19] * 19]]))
    test, sent, asked = SamplingTest(TOKENS), 0, 0
    while sent < 150:
        asked += 1
        tokens = rng.choice(20, p=np.exp(first[0]), size=GROUP)
        rewards = [float(token == 0) for token in tokens]
        if 0 < sum(rewards) < GROUP:
            sent += 1
            readings = [_reading(first, np.array([token])) for token in tokens]
            assert test.passes("worker", readings, rewards, 1.5 * asked / sent)
            assert _most(test) < BOUND / 2


@pytest.mark.parametrize("temperature", [0.6, 1.5])
def test_another_temperature_is_found(temperature: float) -> None:
    found = _groups_until_found(Sampler(0, temperature).group)
    assert found is not None and found <= 10


@pytest.mark.parametrize("marked", [1, 3])
def test_a_marker_is_found_within_a_few_groups(marked: int) -> None:
    found = _groups_until_found(partial(Sampler(0).group, marked))
    assert found is not None and found <= 4


def test_likely_completions_do_not_make_up_for_a_marker() -> None:
    sampler = Sampler(0)

    def group() -> list[Array]:
        """The likeliest of many, beside three with a marker."""
        many = sorted((sampler.completion() for _ in range(4 * GROUP)), key=lambda reading: -reading[0, :3].sum())
        return [*sampler.group(3)[:3], *many[: GROUP - 3]]

    found = _groups_until_found(group)
    assert found is not None and found <= 4


def test_completions_chosen_for_an_improbable_beginning_are_found() -> None:
    """Each is sampled, one of three hundred: its log-probabilities are true."""
    sampler, begins = Sampler(0), [(-30,), (-30,), (-30,)]

    def group() -> list[Array]:
        return [*(sampler.completion(begin) for begin in begins), *sampler.group()[3:]]

    found = _groups_until_found(group)
    assert found is not None and found <= 60


def test_who_says_that_it_samples_without_end_still_may_not_write_a_marker() -> None:
    found = _groups_until_found(partial(Sampler(0).group, 3), tries=1e9)
    assert found is not None and found <= 4


def test_a_sleeper_has_no_credit() -> None:
    test, sampler = SamplingTest(TOKENS), Sampler(0)
    for _ in range(120):
        assert test.passes("worker", sampler.group(), REWARDS)
    assert any(not test.passes("worker", sampler.group(3), REWARDS) for _ in range(4))


def test_newcomers_and_whoever_something_speaks_against_are_doubtful() -> None:
    test, sampler = SamplingTest(TOKENS), Sampler(0)
    for _ in range(FIRST_GROUPS):
        assert test.is_doubtful("worker")
        test.passes("worker", sampler.group(), REWARDS)
    while _most(test) >= DOUBT * BOUND:
        test.passes("worker", sampler.group(), REWARDS)
    assert not test.is_doubtful("worker")
    test.passes("worker", sampler.group(2), REWARDS)
    assert test.is_doubtful("worker")


def test_a_fraud_passes_again_once_half_of_it_is_made_up_for() -> None:
    test, sampler = SamplingTest(TOKENS), Sampler(0)
    while test.passes("worker", sampler.group(3), REWARDS):
        pass
    assert not test.passes("worker", sampler.group(), REWARDS), "the next group is refused, whatever it is"
    while not test.passes("worker", sampler.group(), REWARDS):
        pass
    assert _most(test) < BOUND / 2


def test_many_names_do_not_make_a_fraud_forgotten() -> None:
    test, sampler = SamplingTest(TOKENS), Sampler(0)
    group = sampler.group()
    while test.passes("fraud", sampler.group(3), REWARDS):
        pass
    for number in range(1_100):
        test.passes(str(number), group, REWARDS)
    assert not test.passes("fraud", group, REWARDS) and len(test._authors) == 1_024
