"""Who gets a snapshot from whom: chains where the learner's uplink exceeds a worker's, a tree where it does not.

Everyone gets the whole snapshot in one stream of R bytes/s. A node with uplink u can feed floor(u / R) others at that
rate; R is the fastest at which that is enough places for all. With an uplink of U = m b at the learner and b at the
workers, R is b: the learner starts m chains in which everybody feeds one. With U below b, R is U: the learner feeds
one, and everybody floor(b / U). Places nearest to the learner are taken first, by those who can feed most.

Source: arXiv:2602.02192, section 4.2 (chains); every chain carries the whole here, so that a node has one source and
goes on from any other.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence

from msgspec import Struct

MAX_CHILDREN = 16
MAX_SOURCES = 4
"""Told to each: the nearest ones above it, and the learner."""
ROUNDING = 1e-6


class Limits(Struct, frozen=True, array_like=True):
    """Bytes a second that a node gives and takes at most; None: not limited."""

    up: float | None = None
    down: float | None = None

    @property
    def sound(self) -> bool:
        """Whether they can be planned with: strangers say theirs."""
        return all(rate is None or 0 < rate < math.inf for rate in (self.up, self.down))


class Place(Struct, frozen=True, array_like=True):
    """A node's part in handing a snapshot on."""

    sources: tuple[str, ...]
    """Whom to get it from, then whom that gets it from, and so on; the learner last."""
    num_children: int
    """How many to feed."""
    bytes_per_s: float | None
    """At which it is to come; None when no limit is known."""


class Plan:
    """The places of one broadcast."""

    def __init__(self, learner: str, limits: Limits, workers: Mapping[str, Limits], fan_out: int) -> None:
        """Place everyone; `fan_out` is how many a node feeds when nothing is known of links."""
        self._learner = learner
        self._fan_out = fan_out
        self.bytes_per_s = stream_rate(limits, list(workers.values()), fan_out)
        root = Place((), self._num_children(Limits(limits.up)), None)
        self.places: dict[str, Place] = {learner: root}
        self._free = deque([learner] * root.num_children)
        """Places to be had, the nearest to the learner first."""
        by_use = sorted(workers, key=lambda peer: self._num_children(workers[peer]), reverse=True)
        for peer in by_use:
            self._add(peer, workers[peer])

    def _add(self, peer: str, limits: Limits) -> None:
        parent = self._free.popleft() if self._free else self._learner
        above = self.places[parent].sources
        # The learner comes last: it has no sources of its own.
        sources = (parent, *above[: MAX_SOURCES - 2], *above[MAX_SOURCES - 2 :][-1:])
        place = Place(sources, self._num_children(limits), self.bytes_per_s)
        self.places[peer] = place
        self._free += [peer] * place.num_children

    def _num_children(self, limits: Limits) -> int:
        rate = self.bytes_per_s
        slow = rate is not None and limits.down is not None and limits.down < rate * (1 - ROUNDING)
        return 0 if slow else _num_streams(limits.up, rate, self._fan_out)


def stream_rate(learner: Limits, workers: Sequence[Limits], fan_out: int) -> float | None:
    """Bytes a second at which all can get it at the same time, as far as limits say; None when there are none."""
    downlinks = sorted(math.inf if limits.down is None else limits.down for limits in workers)
    # Half of the workers may be slower than the rest need: those come last, and feed nobody.
    most = min(learner.up or math.inf, downlinks[len(downlinks) // 2] if downlinks else math.inf)
    uplinks = [limits.up for limits in (learner, *workers)]
    shares = {up / k for up in set(uplinks) if up is not None for k in range(1, MAX_CHILDREN + 1)}
    rates = sorted((rate for rate in shares | {most} if rate <= most and math.isfinite(rate)), reverse=True)
    if not rates:
        return None

    def enough(rate: float) -> bool:
        return sum(_num_streams(up, rate, fan_out) for up in uplinks) >= len(workers)

    return rates[min(bisect_right(rates, False, key=enough), len(rates) - 1)]


def _num_streams(up: float | None, rate: float | None, fan_out: int) -> int:
    return fan_out if up is None or rate is None else min(MAX_CHILDREN, int(up / rate * (1 + ROUNDING)))
