"""The age of rollouts: a fixed number of updates, or that of samplers which load the newest policy after random delays.

Source: arXiv:2508.17850, section 4.1. A sampler generates with the policy that it has until a delay drawn from a
distribution has passed, then loads the newest; the time to send rollouts is a part of the delay. Its bounds are 60 and
1,800 s, and 1,800 s correspond to 64 updates.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import NormalDist

LEAST_S = 60.0
WINDOW_S = 1800.0
"""Older rollouts are not used."""
TAIL = 0.0025
"""Probability of a delay below the bounds, and above them: a 99.5% interval."""
NUM_SAMPLERS = 4

Draw = Callable[[random.Random], float]
"""Draws one delay, in seconds."""


def lognormal() -> Draw:
    """The bounds are its 0.25% and 99.75% quantiles."""
    z = NormalDist().inv_cdf(1 - TAIL)
    mu, sigma = math.log(LEAST_S * WINDOW_S) / 2, math.log(WINDOW_S / LEAST_S) / (2 * z)
    return lambda rng: rng.lognormvariate(mu, sigma)


def weibull() -> Draw:
    """The bounds are its 0.25% and 99.75% quantiles."""
    low, high = -math.log1p(-TAIL), -math.log(TAIL)
    shape = math.log(high / low) / math.log(WINDOW_S / LEAST_S)
    scale = WINDOW_S / high ** (1 / shape)
    return lambda rng: rng.weibullvariate(scale, shape)


def exponential() -> Draw:
    """The upper bound is its 99.75% quantile; it has no second parameter for the lower one."""
    rate = -math.log(TAIL) / WINDOW_S
    return lambda rng: rng.expovariate(rate)


DISTRIBUTIONS: dict[str, Draw] = {"lognormal": lognormal(), "weibull": weibull(), "exponential": exponential()}


def check(delay: str) -> str:
    """`delay`, if `lags` knows it. Raises `ValueError`."""
    if delay not in DISTRIBUTIONS and not delay.isdecimal():
        raise ValueError(f"a delay must be a number of updates or one of {', '.join(DISTRIBUTIONS)}, got {delay}")
    return delay


def lags(delay: str, num_updates: int, window_updates: int, seed: int) -> list[int]:
    """Updates between the policy that sampled a batch and the one that trains on it, for each update.

    `delay` is their number, or the name of a distribution; `window_updates` take `WINDOW_S`. The samplers deliver in
    turn. Nothing is older than the initial policy.
    """
    if delay in DISTRIBUTIONS:
        found = _drawn(DISTRIBUTIONS[delay], num_updates, WINDOW_S / window_updates, random.Random(seed))
    else:
        found = [int(delay)] * num_updates
    return [min(lag, update) for update, lag in enumerate(found)]


def _drawn(draw: Draw, num_updates: int, update_s: float, rng: random.Random) -> list[int]:
    loaded_s = [0.0] * NUM_SAMPLERS
    next_s = [_bounded(draw(rng)) for _ in range(NUM_SAMPLERS)]
    found = []
    for update in range(num_updates):
        sampler = update % NUM_SAMPLERS
        while next_s[sampler] <= update * update_s:
            loaded_s[sampler] = next_s[sampler]
            next_s[sampler] += _bounded(draw(rng))
        found.append(update - int(loaded_s[sampler] // update_s))
    return found


def _bounded(delay_s: float) -> float:
    return min(max(delay_s, LEAST_S), WINDOW_S)
