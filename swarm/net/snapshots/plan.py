"""The broadcast plan: chains if the learner's uplink exceeds a worker's, a tree if not.

Every node gets the whole snapshot in one stream of R bytes/s. A node with uplink u can feed floor(u / R) others at that
rate; R is the fastest rate that gives enough places for all. With uplinks U = m b of the learner and b of the workers,
R is b: the learner starts m chains in which each node feeds one. With U below b, R is U: the learner feeds one, and
each worker floor(b / U). Workers that can feed most get the places nearest to the learner.

Source: arXiv:2602.02192, section 4.2 (chains). Here every chain carries the whole snapshot, so that a node has one
source and can continue from any other.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from swarm.net.records.identity import MAX_PEER_ID_CHARS

MAX_CHILDREN = 16
MAX_SOURCES = 4
"""Sources in a place: the nearest nodes above it, and the learner."""
ROUNDING = 1e-6
MAX_BYTES_PER_S = 1e15

PeerId = Annotated[str, Meta(max_length=MAX_PEER_ID_CHARS)]
ClaimedRate = Annotated[float, Meta(ge=2**18, le=MAX_BYTES_PER_S)]
"""Link rates that a stranger may claim. The minimum is that of the settings: a lower one would slow down everybody."""


class LinkLimits(Struct, frozen=True, array_like=True):
    """A node's largest upload and download rates in bytes/s; None: unlimited."""

    up: ClaimedRate | None = None
    down: ClaimedRate | None = None


class Place(Struct, frozen=True, array_like=True):
    """A node's place in a broadcast."""

    sources: Annotated[tuple[PeerId, ...], Meta(max_length=MAX_SOURCES)]
    """The node to fetch from, then that node's source, and so on; the learner last."""
    num_children: Annotated[int, Meta(ge=0, le=2**16)]
    """Number of nodes to feed."""
    bytes_per_s: Annotated[float, Meta(gt=0, le=MAX_BYTES_PER_S)] | None
    """Planned rate of the stream; None without a known limit."""
    feeds: Annotated[tuple[PeerId, ...], Meta(max_length=2**10)] = ()
    """Nodes to feed first."""


class RelayPlan:
    """The places of one broadcast."""

    def __init__(
        self,
        learner: str,
        limits: LinkLimits,
        workers: Mapping[str, LinkLimits],
        fan_out: int,
        *,
        tried: Collection[str] = (),
        idle: Collection[str] = (),
        suspected: Collection[str] = (),
        apart: Collection[tuple[str, str]] = (),
    ) -> None:
        """Place all workers; `fan_out` is the number of children for nodes with unknown links.

        Claimed links are unverified. Workers that were `tried` come first and determine the rate if there are any.
        Those that may have fed nobody, `suspected`, come after others with as many children; `idle` ones come last and
        feed nobody. `apart`: (worker, source) pairs that are not to be.
        """
        self._fan_out = fan_out
        self._idle = idle
        self._apart = apart
        self._fed: defaultdict[str, list[str]] = defaultdict(list)
        counted = [each for peer, each in workers.items() if peer in tried] or list(workers.values())
        self.bytes_per_s = stream_rate(limits, counted, fan_out)
        root = Place((), self._num_children(LinkLimits(limits.up)), None)
        self.places: dict[str, Place] = {learner: root}
        self._free = deque([learner] * root.num_children)
        """Free places, nearest to the learner first."""

        def use(peer: str) -> tuple[bool, bool, int, bool]:
            return peer not in idle, peer in tried, self._num_children(workers[peer]), peer not in suspected

        put_off = []
        for peer in sorted(workers, key=use, reverse=True):
            source = self._take_free(peer)
            if source is None and self._free:
                put_off.append(peer)  # kept apart from all that have a free place now; others will bring more
            else:
                self._add(peer, source or learner, workers[peer])
        for peer in put_off:
            self._add(peer, self._take_free(peer) or learner, workers[peer])
        self.places = {peer: replace(place, feeds=tuple(self._fed[peer])) for peer, place in self.places.items()}

    def _add(self, peer: str, source: str, limits: LinkLimits) -> None:
        above = self.places[source].sources
        # Keep the last source: it is the learner, or nothing for a child of the learner.
        sources = (source, *above[: MAX_SOURCES - 2], *above[MAX_SOURCES - 2 :][-1:])
        place = Place(sources, 0 if peer in self._idle else self._num_children(limits), self.bytes_per_s)
        self.places[peer] = place
        self._fed[source].append(peer)
        self._free += [peer] * place.num_children

    def _take_free(self, peer: str) -> str | None:
        """The source at the first free place for this peer, which is free no more; None if there is none."""
        for index, source in enumerate(self._free):
            if (peer, source) not in self._apart:
                del self._free[index]
                return source
        return None

    def _num_children(self, limits: LinkLimits) -> int:
        rate = self.bytes_per_s
        slow = rate is not None and limits.down is not None and limits.down < rate * (1 - ROUNDING)
        return 0 if slow else _num_streams(limits.up, rate, self._fan_out)


def stream_rate(learner: LinkLimits, workers: Sequence[LinkLimits], fan_out: int) -> float | None:
    """Largest rate in bytes/s at which all can receive at the same time, within the limits; None without limits."""
    downlinks = sorted(math.inf if limits.down is None else limits.down for limits in workers)
    # Up to half of the workers may be slower than the rest; they come last and feed nobody.
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
    return fan_out if up is None or rate is None else int(min(MAX_CHILDREN, up / rate * (1 + ROUNDING)))
