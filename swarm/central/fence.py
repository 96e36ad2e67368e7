"""Compares workers with one another: what lies far outside of the others' completions, or pushes what these do not.

All workers sample the same policy, so that their log-probabilities compare. A worker is no part of its own reference
before it is established, and afterwards only in its favour: nobody excludes an honest worker with very likely texts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from statistics import median_low

import numpy as np
from msgspec.structs import replace

from swarm.protocols import NEWCOMERS, Updater
from swarm.received.corroboration import Corroboration, CorroborationSettings, ReadGroup
from swarm.received.plausibility import Plausibility, PlausibilitySettings, least_probable
from swarm.received.screening import Reading, own_reading
from swarm.types import GradedGroup

RENEW_AFTER = 8
"""Groups of a worker after which its fence is computed again."""
MAX_AUTHORS = 64
"""Workers whose completions are remembered."""


class WorkerFence:
    """The plausible log-probabilities of rewarded completions, by worker; all by the workers' checked claims."""

    def __init__(self, settings: PlausibilitySettings) -> None:
        """Everything is plausible until enough is known of other workers."""
        self._settings = settings
        self._of: OrderedDict[str, Plausibility] = OrderedDict()
        self._fences: dict[str, float] = {}
        """Of each, as of one of its last groups."""
        self._num_learned: dict[str, int] = {}

    def learn(self, graded: GradedGroup) -> None:
        """Add a group that was admitted."""
        author = graded.group.peer_id
        known = self._of.setdefault(author, Plausibility(self._settings))
        known.learn([completion.logprobs for completion in graded.group.completions], graded.rewards)
        self._num_learned[author] = self._num_learned.get(author, 0) + 1
        if self._num_learned[author] % RENEW_AFTER <= 1:
            self._fences[author] = known.fence
        self._of.move_to_end(author)
        if len(self._of) > MAX_AUTHORS:
            forgotten, _ = self._of.popitem(last=False)
            del self._fences[forgotten], self._num_learned[forgotten]

    def bound(self, author: str, established: Collection[str]) -> float:
        """Nats per token below which a rewarded completion of `author` is left out: the median of the established
        others' fences."""
        others = [fence for name, fence in self._fences.items() if name != author and name in established]
        fence = median_low(others) if others else -np.inf
        return min(fence, self._fences.get(author, np.inf)) if author in established else fence


class Bounded:
    """The part of `Plausibility` that screens one worker's group."""

    def __init__(self, bound: float) -> None:
        """As `WorkerFence.bound` gives it."""
        self._bound = bound

    def plausible(self, raised: Sequence[Sequence[float]]) -> list[bool]:
        """See `Plausibility`."""
        return [not logprobs or least_probable(logprobs) >= self._bound for logprobs in raised]


class Claimed:
    """An updater's advantages, with the log-probabilities that workers claim: nothing is recomputed."""

    def __init__(self, updater: Updater) -> None:
        """Of the policy that is trained."""
        self.advantages = updater.advantages

    def read(self, groups: Sequence[GradedGroup]) -> list[Reading]:
        """By group, completion and turn."""
        return [own_reading(graded) for graded in groups]


class WorkerCorroboration:
    """Compares what a worker's groups push with what the established others' do; see `Corroboration`."""

    def __init__(self, settings: CorroborationSettings) -> None:
        """Every push counts until others are known. Fair parts already bound new workers."""
        self._settings = settings.model_copy(update={"full_after": 1})
        self._of: OrderedDict[str, Corroboration] = OrderedDict()
        """Of each worker that counts as an author, with the others instead of own groups."""

    def credited(self, graded: GradedGroup, group: ReadGroup, author: str) -> GradedGroup:
        """The group with factors of its token advantages, by what the others' groups bear out; `author` is what its
        worker counts as."""
        if not self._settings.enabled:
            return graded
        known = self._of.setdefault(author, Corroboration(self._settings))
        self._of.move_to_end(author)
        if len(self._of) > MAX_AUTHORS:
            self._of.popitem(last=False)
        if author != NEWCOMERS:
            for name, other in self._of.items():
                if name != author:
                    other.learn(group, 0.0)
        known.observe([author], group)
        return replace(graded, factors=known.factors([author], group))
