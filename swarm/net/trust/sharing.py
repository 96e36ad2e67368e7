"""Which groups a node shares, and how: broadcast, or offered. All members share one rate of offers.

    members  =  offers heard per second / self-reported rate of a typical author
    rate     =  offers per second that links carry / members

    groups of a round ──▶ sampled at the common rate ──▶ cheaper to offer? ──▶ offers, for members that want the group
                                                               └──▶ the group, to all members

Each author has one self-reported rate, and counts for a few members at most, however much it sends. Newcomers count in
proportion to the usable part of their groups, so that idle identities take no share of members' rate. A node that lacks
groups (`Appetite`) offers more: a rate that lies or floods have lowered rises again where groups are wanted.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate

from msgspec import Struct

from swarm.net.records.envelope import MAX_CHUNK_BYTES
from swarm.net.records.feed import FOLLOWED_AT_ONCE
from swarm.net.records.offers import KNOWING, describe, pulling_is_cheaper
from swarm.types import NetworkStatus, Offer, VerifiedGroup

logger = logging.getLogger(__name__)

OFFERS_PER_S = 32.0
"""Offers of all members together: about those of a thousand nodes with one group in 30 s."""
WINDOW_S = 60.0
MAX_HEARD = 4_096
"""Latest records of the window that are remembered."""
MAX_TIMES = 4.0
"""An author counts for at most so many typical ones, and for so many records more."""
MIN_SPAN_S = 1.0
MEMORY = 0.97
"""Weight that a newcomer's group keeps with each later one."""
MAX_APPETITE = 2.0**30
SATED = 0.9
"""Factor of each round whose update had enough."""
MIN_HEARD = 64
"""Groups before the fraction says anything."""
MEMORY_GROUPS = 512
"""Older groups fade."""
MIN_ROUND_S = 1.0
"""Shorter ones count as this long."""


class _Heard(Struct, frozen=True):
    at: float
    author: str
    num: int
    per_s: float
    """Self-reported; 0 if unknown."""


class OfferRate:
    """The common rate, from recent offers. Thread-safe."""

    def __init__(self, most: float = OFFERS_PER_S, clock: Callable[[], float] = time.monotonic) -> None:
        """No offers yet. `most`: offers per second of all members together."""
        self._most = most
        self._clock = clock
        self._since = clock()
        self._heard: deque[_Heard] = deque(maxlen=MAX_HEARD)
        self._known: frozenset[str] = frozenset()
        self._newcomers = 1.0
        self._given = Usefulness()
        self._lock = threading.Lock()

    def heard(self, author: str, num: int, per_s: float) -> None:
        """An author made this many offers at once, and reports `per_s` per second."""
        with self._lock:
            self._heard.append(_Heard(self._clock(), author, num, per_s))

    def trust(self, known: Collection[str], newcomers: float) -> None:
        """Count these authors in full, and all others by what they give, of which the fraction `newcomers` teaches."""
        with self._lock:
            self._known, self._newcomers = frozenset(known), newcomers

    def asked(self, author: str, gave: bool) -> None:
        """An author was asked for a group that it had offered."""
        with self._lock:
            if author not in self._known:
                self._given.update(gave)

    def per_s(self) -> float:
        """Offers per second that each member may make."""
        return self._most / max(1.0, self.num_members())

    def num_members(self) -> float:
        """Members of the run that share groups, as many as typical authors would be; 0 while none is heard."""
        with self._lock:
            now = self._clock()
            while self._heard and now - self._heard[0].at > WINDOW_S:
                self._heard.popleft()
            heard, known, newcomers = list(self._heard), self._known, self._newcomers * self._given.fraction
        # A full memory covers less than the window.
        began = heard[0].at if len(heard) == MAX_HEARD else max(self._since, now - WINDOW_S)
        weights = {each.author: 1.0 if each.author in known else newcomers for each in heard}
        return _num_typical(heard, weights, max(MIN_SPAN_S, now - began))


def _num_typical(heard: Collection[_Heard], weights: Mapping[str, float], span_s: float) -> float:
    counts: Counter[str] = Counter()
    for each in heard:
        counts[each.author] += each.num
    # A self-reported rate far above the offers heard is not believed.
    rates = {each.author: min(each.per_s, (1 + counts[each.author]) / span_s) for each in heard if each.per_s > 0}
    if not sum(weights[author] for author in rates):
        return 0.0
    typical = _median([(rate, weights[author]) for author, rate in rates.items()])
    most_of_one = MAX_TIMES * (1 + typical * span_s)
    return sum(weights[author] * min(count, most_of_one) for author, count in counts.items()) / span_s / typical


def _median(weighted: Collection[tuple[float, float]]) -> float:
    """Weighted median of (value, weight); the mean of two values that divide the weight in halves."""
    ranked = sorted(weighted)
    sums = list(accumulate(weight for _, weight in ranked))
    half = sums[-1] / 2
    low, high = bisect_left(sums, half), min(bisect_right(sums, half), len(ranked) - 1)
    return (ranked[low][0] + ranked[high][0]) / 2


class Usefulness:
    """The fraction of the newcomers' groups that they gave when asked, or of those graded that teach.

    A node chooses among newcomers at random, so that members could use this fraction of their offers.
    """

    def __init__(self) -> None:
        """Newcomers count in full until they are tried."""
        self.fraction = 1.0
        self._num = 1.0

    def update(self, usable: bool) -> None:
        """One more group; older ones fade."""
        self._num = MEMORY * self._num + 1
        self.fraction += (usable - self.fraction) / self._num


class Appetite:
    """Multiple of the common rate at which a node offers; it grows while its updates lack groups."""

    def __init__(self) -> None:
        """The common rate."""
        self.factor = 1.0

    def update(self, num_groups: int, num_wanted: int) -> None:
        """An update took this many of others' groups of those it wanted; less than half is too few."""
        short = 2 * num_groups < num_wanted
        self.factor = min(MAX_APPETITE, 2 * self.factor) if short else max(1.0, SATED * self.factor)


class Demand:
    """Groups that others sent or offered, and those that updates used; recent ones count most."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._heard = 0.0
        self._used = 0.0
        self._total = 0

    def heard(self, num: int) -> None:
        """Others sent or offered this many groups."""
        fading = 0.5 ** (num / MEMORY_GROUPS)
        self._heard = fading * self._heard + num
        self._used *= fading
        self._total += num

    def used(self, num: int) -> None:
        """An update used this many of them."""
        self._used += num

    @property
    def fraction(self) -> float | None:
        """The fraction of others' groups that this node uses, in [0, 1]; None while too few were heard of."""
        return min(1.0, self._used / self._heard) if self._total >= MIN_HEARD else None


class Sharing:
    """Decides by what the node measured: `demand`, its own appetite, and the network's status."""

    def __init__(self, demand: Demand, offer_life_s: float, seed: str, clock: Callable[[], float]) -> None:
        """Groups on offer can be had for `offer_life_s`."""
        self.appetite = Appetite()
        self._demand = demand
        self._offer_life_s = offer_life_s
        self._random = random.Random(seed)
        self._clock = clock
        self._shared_at = clock()
        self._warned_of_size = False

    def choose(self, num_groups: int, common_per_s: float) -> tuple[list[bool], float]:
        """A mask of the groups to share, and the resulting rate per second.

        Groups are sampled, so that nodes with short rounds and those with one group in an hour keep to the same rate.
        """
        now = self._clock()
        elapsed_s, self._shared_at = max(MIN_ROUND_S, now - self._shared_at), now
        made_per_s = num_groups / elapsed_s
        allowed_per_s = self.appetite.factor * common_per_s
        if made_per_s <= allowed_per_s:
            return [True] * num_groups, made_per_s
        return [self._random.random() < allowed_per_s / made_per_s for _ in range(num_groups)], allowed_per_s

    def offers(self, groups: Sequence[VerifiedGroup], status: NetworkStatus) -> dict[str, Offer]:
        """Offers of the groups that members should pull, by content id; the others are broadcast."""
        wanted, num_members = self._demand.fraction, len(status.connected)
        if wanted is None and num_members >= FOLLOWED_AT_ONCE:
            wanted = 0.0  # of all groups of a large swarm, a member uses few
        # In a large swarm most connected members are ones that dialled: nothing is known of these.
        if wanted is None or not status.num_pulling >= KNOWING * status.num_described > 0:
            return {}
        pull = [each for each in groups if pulling_is_cheaper(len(each.record), num_members, wanted)]
        self._warn_of_size(max((len(each.record) for each in pull), default=0))
        offers = {each.content_id: describe(each, self._offer_life_s) for each in pull}
        return {content_id: offer for content_id, offer in offers.items() if offer is not None}

    def _warn_of_size(self, num_bytes: int) -> None:
        """Once, of a group that cannot be offered."""
        if num_bytes > MAX_CHUNK_BYTES and not self._warned_of_size:
            self._warned_of_size = True
            logger.warning(
                "a group of %d KiB is sent to every member, wanted or not: only groups of up to %d KiB can be offered; "
                "smaller generation.max_new_tokens or generation.group_size, or share.max_groups, would save traffic",
                num_bytes // 1024,
                MAX_CHUNK_BYTES // 1024,
            )
