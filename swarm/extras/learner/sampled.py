"""Whether completions were sampled from the policy that they name: truthful log-probabilities do not prove that.

A marker that was written in front of a completion can be claimed with its true log-probability, and so can a text that
was chosen among thousands of samples. But samples of a distribution p are not more surprising than its entropy for
long. The test bets against that: per token, its evidence is the likelihood ratio of a hotter or colder distribution
q ~ p^a to p. For tokens sampled from p its expectation is 1 whatever p is, so that large products are as improbable as
they are large (Ville's inequality). It needs no model of texts and no threshold for surprise.

    token ──▶ log q/p ──▶ prefixes, windows and whole of a completion ──▶ groups ──▶ sum per author, never below 0
                                                                                        │ above `BOUND`: not sampled

Source of the sums: Page, 1954; of their bound: arXiv:2203.03532 (e-detectors), theorem 2.4.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

POWERS = (0.5, 2.0)
"""Exponents a of the hotter and the colder distribution; log sum p^a of each comes from the pass that recomputes
log-probabilities."""
PREFIXES = (1, 2, 4, 8, 16)
"""Tokens at the beginning of a completion that are tested on their own, besides its whole: a marker sits there."""
WINDOWS = (4, 16)
"""Widths of windows, any one of which may be the surprising one."""
PART = 0.1
"""Part of the completions that was not sampled, where the test supposes so few: samples that are likelier than most do
not make up for them."""
MAX_TRIES = 64.0
"""Groups sampled for each one sent, at most, whatever a worker says."""
GROUPS_PER_DAY = 1e5
FALSE_ALARMS_PER_DAY = 1e-6
NUM_TESTS = 2 * (3 * (len(PREFIXES) + 1) + len(WINDOWS))
BOUND = math.log(NUM_TESTS * GROUPS_PER_DAY / FALSE_ALARMS_PER_DAY)
"""Nats of evidence. Of an honest author one of `GROUPS_PER_DAY` tested groups a day reaches it with at most
probability `FALSE_ALARMS_PER_DAY`."""
DOUBT = 0.25
"""Part of it from which all groups of an author are tested."""
FIRST_GROUPS = 8
"""Of each author all are tested."""
MAX_REMEMBERED = 1_024


class Standing(Struct):
    """What is known of an author."""

    sums: NDArray[np.float64]
    """[2, tests / 2] evidence so far: of all completions, and without one of either reward of each group."""
    num_groups: int = 0
    condemned: bool = False


class SamplingTest:
    """The evidence against each author. Pure: texts and policies are the caller's."""

    def __init__(self, max_new_tokens: int) -> None:
        """Nothing is known. `max_new_tokens` of a completion are sampled at most."""
        self._max_new_tokens = max_new_tokens
        self._authors: OrderedDict[str, Standing] = OrderedDict()

    def is_doubtful(self, author: str) -> bool:
        """Whether all groups of an author are to be tested: it is new, or something speaks against it."""
        known = self._authors.get(author)
        return known is None or known.num_groups < FIRST_GROUPS or float(known.sums.max()) >= DOUBT * BOUND

    def passes(
        self, author: str, readings: Sequence[NDArray[np.float64]], rewards: Sequence[float], tries: float = 1.0
    ) -> bool:
        """Add a group: whether its author's completions so far can be samples.

        `readings`: of each of the G completions [1 + len(POWERS), T], its log-probabilities and log sum p^a. `rewards`
        [G] by this node. `tries`: groups that the author samples for each that it sends, since only those with signal
        are sent. An author that failed passes again once half of the evidence against it is made up for.
        """
        known = self._of(author)
        found = np.stack([_evidence(reading, self._max_new_tokens) for reading in readings], axis=1)  # [tests / 2, G]
        known.sums = np.clip(known.sums + _of_group(found, rewards, tries), 0.0, 2 * BOUND)
        known.num_groups += 1
        most = float(known.sums.max())
        known.condemned = most >= BOUND or (known.condemned and most >= BOUND / 2)
        return not known.condemned

    def _of(self, author: str) -> Standing:
        known = self._authors.get(author)
        if known is None:
            if len(self._authors) >= MAX_REMEMBERED:
                self._forget_one()
            known = self._authors[author] = Standing(np.zeros((2, NUM_TESTS // 2)))
        self._authors.move_to_end(author)
        return known

    def _forget_one(self) -> None:
        """Names are free: those against whom much speaks are forgotten last, then those tested most."""
        del self._authors[min(self._authors, key=lambda name: _weight(self._authors[name]))]


def _weight(known: Standing) -> tuple[bool, int]:
    return float(known.sums.max()) >= DOUBT * BOUND, known.num_groups


def _of_group(found: NDArray[np.float64], rewards: Sequence[float], tries: float) -> NDArray[np.float64]:
    """[2, tests / 2] log of the evidence of a group that was sent because its rewards differ.

    Whoever sends one group of n may choose what is n times as improbable: that is taken off (`tries`). And of a group
    with signal one rewarded and one other completion are chosen in any case; without the most surprising of either,
    the evidence has an expectation of at most 1 however rare the signal is (up to 2^-G).
    """
    total = found.sum(axis=1)
    mean = sum(rewards) / len(rewards)
    rewarded = np.array([reward > mean for reward in rewards])
    chosen = found[:, rewarded].max(axis=1, initial=0.0) + found[:, ~rewarded].max(axis=1, initial=0.0)
    everything = total - math.log(min(MAX_TRIES, max(1.0, tries)))
    return np.array([everything, total - chosen], dtype=np.float64)


def _evidence(reading: NDArray[np.float64], max_new_tokens: int) -> NDArray[np.float64]:
    """[tests / 2] log of the evidence of one completion, each at most `BOUND`."""
    logprobs, partitions = reading[0], reading[1:]
    hot, cold = ((power - 1) * logprobs - partition for power, partition in zip(POWERS, partitions, strict=True))
    ends = [min(width, len(logprobs)) - 1 for width in (*PREFIXES, len(logprobs))]
    hotter, colder = hot.cumsum()[ends], cold.cumsum()[ends]
    bursts = [_burst(hot, width, max_new_tokens) for width in WINDOWS]
    few = np.logaddexp(math.log(1 - PART), math.log(PART) + np.array([*hotter, *bursts]))
    found: NDArray[np.float64] = np.minimum(np.concatenate([hotter, few, colder]), BOUND)
    return found


def _burst(hot: NDArray[np.float64], width: int, max_new_tokens: int) -> float:
    """Log of the evidence that one of the windows of a completion is not sampled, any of those that it may have."""
    windows = np.minimum(np.add.reduceat(hot, range(0, len(hot), width)), BOUND)
    possible = max(len(windows), math.ceil(max_new_tokens / width))
    unused = math.log(possible - len(windows)) if possible > len(windows) else -math.inf
    return float(np.logaddexp(unused, np.logaddexp.reduce(windows))) - math.log(possible)
